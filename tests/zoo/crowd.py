"""One of several processes that use a zoo at once: adds, lists, verifies, removes, collects: ``crowd.py ZOO SOURCE NAME``.

Not a test: ``test_disk.py`` starts four of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from blockwright.zoo.add import add
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

if __name__ == "__main__":
    os.fsync = lambda fd: None
    zoo = Path(sys.argv[1])
    source = sys.argv[2]
    name = sys.argv[3]
    for _ in range(8):
        add(zoo, source, name)
        assert name in {one.application for one in Zoo(zoo).listings()}
        faults = verify(zoo).faults
        assert not faults, faults
        remove(zoo, name)
        gc(zoo)
    add(zoo, source, name)

"""A process of its own in which a node gets what is meant to eat memory.

    python -m blockwright.tests.fuzz.weighed DIRECTORY

prints a line of JSON for each portion: its name, and by how many bytes the process is larger at its peak so far than when it
began. A fresh process, because one in which other tests ran has memory left over that hides growth.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from blockwright.tests.fuzz import rubbish
from blockwright.tests.fuzz.rig import Rig
from blockwright.tests.waiting import until_now
from blockwright.transport import wire


def peak() -> int:
    """Bytes resident at most, of this program alone: ``ru_maxrss`` would begin with those of the one that started it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def portions() -> dict[str, list[list[bytes]]]:
    """Messages of one connection, by name."""
    made = {
        name: [[wire.SINGLE_MARK, body], [wire.LINK_MARK, body[:1000]], [wire.ALONE_MARK + body], [b"\x01" + body[:1000]]]
        for name, body in rubbish.bombs().items()
    }
    parts = wire.BATCH_PARTS
    made["a batch of nothing"] = [[wire.pack_batch([0] * parts, [b""] * parts)]] * 8
    made["a batch of a buffer for each part"] = [[wire.pack_batch([wire.MORE] * (parts - 1) + [0], [b""] * parts)]] * 8
    made["batches that announce more than they hold"] = [
        [b"\x01\0\0\0" + count.to_bytes(4, "little") + bytes(rest)]
        for count in (1, parts, 2**32 - 1)
        for rest in (0, 3, 1 << 20)
    ]
    return made


def flood(rig: Rig) -> None:
    empty = b"\xdc\xff\xff" + b"\x90" * 0xFFFF
    known = rig.node.dropped["garbage"]

    def seen() -> bool:
        """Perhaps after some floods: what a slow machine has not sent when its sender leaves is lost."""
        rig.send([[wire.SINGLE_MARK, empty]] * 300 + [[b"\x00"]] * 3000, greet=rig.greeting())
        rig.serve()
        return rig.node.dropped["garbage"] > known + 1000

    until_now(seen, "the flood is noticed")


def main(directory: str) -> None:
    logging.getLogger("blockwright").setLevel(logging.CRITICAL + 1)
    rig = Rig(Path(directory))
    before = peak()
    for name, messages in portions().items():
        rig.send(messages, greet=rig.greeting())
        print(json.dumps([name, peak() - before]), flush=True)
    flood(rig)
    print(json.dumps(["a flood", peak() - before]), flush=True)
    rig.close()


if __name__ == "__main__":
    main(sys.argv[1])

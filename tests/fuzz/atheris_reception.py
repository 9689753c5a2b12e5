"""A bounded run of atheris (libFuzzer, guided by coverage) on what a node does with a message.

python atheris_reception.py [RUNS]     exit status 0: nothing was found

Starts from the valid messages; the same portion of rubbish is judged as in ``test_reception.py``: nothing is raised, and the
well-behaved peer is served.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["blockwright.runtime", "blockwright.transport"]):
    from blockwright.tests.fuzz import rubbish
    from blockwright.tests.fuzz.target import ATTACKER, STRANGER, WAYS, Target

RUNS = 20_000
LONGEST = 2048  # bytes of one input


def fuzz(target: Target, data: bytes) -> None:
    """The last byte of an input says who sends it and how, the rest is the message."""
    provider = atheris.FuzzedDataProvider(data)
    how = provider.ConsumeIntInRange(0, 255)
    body = provider.ConsumeBytes(provider.remaining_bytes())
    target.feed(STRANGER if how % 8 == 7 else ATTACKER, body, [body[:8]] * (how // 64), WAYS[how % 3 if how % 8 > 4 else 0])


def main(runs: int) -> None:
    logging.getLogger("blockwright").setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory() as corpus, Target() as target:
        for number, message in enumerate(rubbish.VALID):
            (Path(corpus) / str(number)).write_bytes(rubbish.packed(message) + b"\x00")
        options = [f"-runs={runs}", "-seed=1", f"-max_len={LONGEST}", "-rss_limit_mb=1024", "-verbosity=0", corpus]
        atheris.Setup([sys.argv[0], *options], lambda data: fuzz(target, data))
        atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)

"""What the server tells of the requests that fit its memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blockwright.api.serve.console import capacity
from blockwright.tests.api.fake_port import FakePort


def test_where_no_usual_request_fits_the_longest_one_and_the_setting_are_printed(folder: Path) -> None:
    small = replace(FakePort(folder, lambda generation: ()).infos[0], id="small", rooms=(48, 32), max_length=512)
    message = "requests of at most 48 tokens (--set memory=... with more gives room for longer ones)"
    assert capacity([small], 8) == f"room for {message}"
    alone = replace(small, id="alone", longest=512)
    assert capacity([alone], 8) == "room for about 1 concurrent request of 512 tokens", "others are unloaded for it"
    exact = replace(small, id="exact", rooms=(512, 512))
    both = f"room for {message} to small, or about 2 concurrent requests of 512 tokens to exact"
    assert capacity([small, exact], 8) == both
    three = [replace(exact, id=name) for name in ("base", "full0", "full1")]
    message = "about 2 concurrent requests of 512 tokens to base, full0 or full1"
    assert capacity([*three, alone], 8) == f"room for {message}, or about 1 concurrent request of 512 tokens to alone"

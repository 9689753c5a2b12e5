"""docs/many-machines.md, "From one machine to two", typed in on two hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import ROOT, Block, Reader, blocks
from blockwright.tests.hosts.network import Hosts

pytestmark = [pytest.mark.system, pytest.mark.nightly]
BEGIN, END = "## From one machine to two", "## Join texts"
THERE = ("blockwright doctor --join", "blockwright worker --join", "blockwright gateway --join")  # on the second machine
WAY_BACK = "the head reaches tcp://"


def on_two(block: Block, here: str, there: str) -> Block:
    """The block as it is meant for two machines with these addresses. These two share memory, so it is still said."""
    text = block.text.replace(f"{WAY_BACK}127.0.0.1", f"{WAY_BACK}{there}").replace("127.0.0.1", here)
    return replace(block, text=text.replace("--port 0", f"--host {there} --port 0"))


@claim("The way from one machine to two works on two hosts as the page shows it", of="installation")
def test_the_way_from_one_machine_to_two(hosts: Hosts | None, tmp_path: Path) -> None:
    assert hosts is not None
    page = (ROOT / "docs" / "many-machines.md").read_text()
    section = page[page.index(BEGIN) : page.index(END)]
    reader, ran = Reader(tmp_path), list[str]()
    try:
        for block in blocks(section):
            place = "b" if block.text.startswith(THERE) else "a"
            ran.append(place)
            with hosts.at(place):
                reader.follow(on_two(block, hosts.address("a"), hosts.address("b")))
        assert ran.count("b") == len(THERE)
    finally:
        reader.close()

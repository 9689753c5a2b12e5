"""Streams of Anthropic's API, read as a client reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jiter import from_json


def events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each has the name of its type."""
    found = []
    for one in body.decode("ascii").split("\n\n")[:-1]:
        if one.startswith(":"):
            continue
        name, data = one.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def blocks(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of a stream make, one at a time."""
    made: list[dict[str, Any]] = []
    inputs: list[str] = []
    is_open = False
    for event in found:
        assert event["index"] == len(made) - is_open
        if event["type"] == "content_block_start":
            made.append(event["content_block"])
            inputs, is_open = [], True
            continue
        assert is_open
        if event["type"] == "content_block_stop":
            is_open = False
        elif (text := event["delta"].get("partial_json")) is not None:
            inputs.append(text)
            made[-1]["input"] = from_json("".join(inputs).encode(), partial_mode=True)
        else:
            kind = event["delta"]["type"].removesuffix("_delta")
            made[-1][kind] += event["delta"][kind]
    assert not is_open
    return made

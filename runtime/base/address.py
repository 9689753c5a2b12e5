"""Addresses of actors: ``node/actor``, optionally pinned to one incarnation of the node and one life of the actor.

``node/actor`` follows the current life of node and actor, ``node/actor#3`` is pinned to the node's third incarnation,
``node/actor#3.2`` to the actor's second life in it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ...transport.address import check_name
from ...transport.errors import AddressError

NODE_SERVICE = "$node"  # name of the actor that serves other nodes (``node/service.py``); no application can take it
_NUMBERS = re.compile(r"[1-9][0-9]{0,17}(\.[1-9][0-9]{0,17})?")


class Address(NamedTuple):
    """``incarnation`` 0, ``life`` 0: whichever is current."""

    node: str
    name: str
    incarnation: int = 0
    life: int = 0  # of the actor in that incarnation of its node, from 1

    def __str__(self) -> str:
        if not self.incarnation:
            return f"{self.node}/{self.name}"
        return f"{self.node}/{self.name}#{self.incarnation}" + (f".{self.life}" if self.life else "")

    @property
    def key(self) -> str:
        """The actor as its own node is asked for it: ``name`` or ``name#life``."""
        return f"{self.name}#{self.life}" if self.life else self.name


def parse_address(text: str) -> Address:
    """Parse ``node/actor``, ``node/actor#incarnation`` or ``node/actor#incarnation.life``; AddressError otherwise."""
    if not isinstance(text, str):
        raise AddressError(f"{text!r} is no text of the form node/actor, node/actor#3 or node/actor#3.1")
    return _parse(text)


@lru_cache(maxsize=1024)  # each message names some, and they are few
def _parse(text: str) -> Address:
    node, slash, rest = text.partition("/")
    name, mark, numbers = rest.partition("#")
    if not slash or (mark and _NUMBERS.fullmatch(numbers) is None):
        raise AddressError(f"{text[:80]!r} is not of the form node/actor, node/actor#3 or node/actor#3.1")
    incarnation, _, life = numbers.partition(".")
    return Address(check_name(node), check_name(name), int(incarnation or 0), int(life or 0))

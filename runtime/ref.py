"""A reference to an actor: where it is, and its endpoints as methods.

Owns addresses (``node/actor`` follows the current life of node and actor, ``node/actor#3`` is pinned to the node's third
incarnation, ``node/actor#3.2`` to the actor's second life in it) and the calling syntax. Everything else is the node's
business. References are cheap and may outlive the actor.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from blockwright.runtime.actor import RESERVED, Actor
from blockwright.transport.address import check_name
from blockwright.transport.errors import AddressError

T = TypeVar("T")
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
    """``node/actor``, ``node/actor#incarnation`` or ``node/actor#incarnation.life``; AddressError otherwise."""
    node, slash, rest = text.partition("/")
    name, mark, numbers = rest.partition("#")
    if not slash or (mark and _NUMBERS.fullmatch(numbers) is None):
        raise AddressError(f"{text[:80]!r} is not of the form node/actor, node/actor#3 or node/actor#3.1")
    incarnation, _, life = numbers.partition(".")
    return Address(check_name(node), check_name(name), int(incarnation or 0), int(life or 0))


class Caller(Protocol):
    """What a reference needs of its node."""

    def call(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Coroutine[Any, Any, Any]:
        """``patience``: seconds to wait for the answer."""

    def cast(self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def current_incarnation(self, node: str) -> int: ...


CALL_TIMEOUT = 30.0  # seconds


class Method:
    """An endpoint of a reference."""

    __slots__ = ("_caller", "_name", "_returns", "_target")

    def __init__(self, caller: Caller, target: Address, name: str, returns: Any) -> None:
        self._caller, self._target, self._name, self._returns = caller, target, name, returns

    @overload
    def __call__(self, *args: Any, timeout: float = ..., returns: type[T], **kwargs: Any) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: Any, timeout: float = ..., returns: Any = ..., **kwargs: Any) -> Coroutine[Any, Any, Any]: ...
    def __call__(self, *args: Any, timeout: float = CALL_TIMEOUT, returns: Any = None, **kwargs: Any) -> Any:
        """Call and wait for the answer.

        timeout: seconds; a call made inside an endpoint never outlives the deadline of what it serves.
        returns: annotation of the answer; needed for dataclasses from another process, unless the reference knows its class.
        Raises a RuntimeFault (``errors.py``).
        """
        wanted = self._returns if returns is None else returns
        return self._caller.call(self._target, self._name, args, kwargs, timeout, wanted)

    def cast(self, *args: Any, **kwargs: Any) -> None:
        """Send without an answer, now. What cannot be delivered is counted in ``node.dead_letters``, never raised; only
        arguments that cannot travel raise EncodeError."""
        self._caller.cast(self._target, self._name, args, kwargs)


class Ref:
    """``await ref.add(3)``, ``ref.add.cast(3)``."""

    __slots__ = ("_actor", "_caller", "address")

    def __init__(self, caller: Caller, address: Address, actor: type[Actor] | None = None) -> None:
        self._caller, self.address, self._actor = caller, address, actor

    @property
    def node(self) -> str:
        return self.address.node

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def incarnation(self) -> int:
        """Of the node; 0 when the reference follows a node that is not up."""
        return self.address.incarnation or self._caller.current_incarnation(self.address.node)

    @property
    def life(self) -> int:
        """Of the actor; 0 when the reference follows whichever is current."""
        return self.address.life

    def __getattr__(self, endpoint: str) -> Method:
        if endpoint.startswith("_") or endpoint in RESERVED:
            raise AttributeError(endpoint)
        returns = None
        if self._actor is not None:
            if endpoint not in self._actor.endpoints:
                raise AttributeError(f"{self._actor.__qualname__} has no endpoint {endpoint!r}")
            returns = self._actor.endpoints[endpoint].returns
        return Method(self._caller, self.address, endpoint, returns)

    def __str__(self) -> str:
        return str(self.address)

    def __repr__(self) -> str:
        return f"Ref({self.address})"

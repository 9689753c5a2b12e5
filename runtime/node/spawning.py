"""Starting actors elsewhere: a class travels as its import name, its arguments as plain data typed by its ``__init__``.

Owns import names (only importable subclasses of ``Actor``; nothing is unpickled), the check of arguments against
annotations, and what becomes of a spawn whose answer nobody waits for any more: the actor is ended. Lives are ``life``'s.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.ref import Address, Ref, parse_address
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.clock import LONGEST
from blockwright.runtime.base.codec import decode, encode, field_names, pack, unpack
from blockwright.runtime.base.errors import DeadlineExceeded, DecodeError, EncodeError, NoSuchActor, remote_error
from blockwright.runtime.base.names import import_module, import_name
from blockwright.runtime.node.monitors import SYSTEM

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node

_tickets = itertools.count(1)


def load_class(name: str) -> type[Actor]:
    """The actor class of that import name. Raises ImportError, ValueError."""
    module, colon, path = name.partition(":")
    if not colon:
        raise ValueError(f"actor class {name!r} is not of the form module:Qualname")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise ValueError(f"{name} is not a subclass of Actor")
    return found


class Imports:
    """Loads classes whose modules may be news to this process: beside the loop, so that a node which imports for seconds is
    not taken for one that hangs."""

    def __init__(self) -> None:
        self._begun: set[str] = set()  # modules that may be half imported

    async def load(self, name: str) -> type[Actor]:
        """Raises as ``load_class`` does."""
        module = name.partition(":")[0]
        if module in sys.modules and module not in self._begun:
            return load_class(name)
        self._begun.add(module)
        try:
            try:
                found = await asyncio.to_thread(load_class, name)
            except NotImplementedError:  # a loop under virtual time has no threads, and nobody who waits
                found = load_class(name)
        except Exception:  # not for a cancellation: the thread goes on
            self._begun.discard(module)
            raise
        self._begun.discard(module)
        return found


def construct(kind: type[Actor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Actor:
    """An instance, from arguments that came as plain data. Raises DecodeError, naming the parameter."""
    try:
        bound = inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        raise DecodeError(f"{kind.__qualname__}: {error}") from error
    annotations = _annotations(kind)
    for name, value in bound.arguments.items():
        wanted = annotations.get(name, Any)
        parameter = bound.signature.parameters[name].kind
        try:
            if parameter is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(decode(wanted, item) for item in value)
            elif parameter is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: decode(wanted, item) for key, item in value.items()}
            else:
                bound.arguments[name] = decode(wanted, value)
        except DecodeError as error:
            raise DecodeError(f"{kind.__qualname__}({name}): {error}") from error
    return kind(*bound.args, **bound.kwargs)


def reconstruct(kind: type[Actor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Actor:
    """An instance on this node, as if the arguments had travelled."""
    check_arguments(kind, args, kwargs)
    sink = Sink()
    body = pack([encode(list(args), sink), encode(dict(kwargs), sink)])
    plain = unpack(body, [memoryview(buffer) for buffer in sink.buffers])
    return construct(kind, plain[0], plain[1])


def portable(value: Any) -> Any:
    """The value with its actor classes, in lists, dicts and dataclasses, as import names."""
    if isinstance(value, type) and issubclass(value, Actor):
        return import_name(value)
    if type(value) in (list, tuple):
        return [portable(item) for item in value]
    if type(value) is dict:
        return {key: portable(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: getattr(value, name) for name in field_names(type(value))}
        changed = {name: new for name, old in fields.items() if (new := portable(old)) is not old and new != old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def check_arguments(kind: type[Actor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse, where it can be seen here, what another node could not tell from plain data. Raises EncodeError."""
    try:
        bound = inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        raise EncodeError(f"{kind.__qualname__}: {error}") from error
    annotations = _annotations(kind)
    for name, value in bound.arguments.items():
        sink = Sink()
        try:
            encode(value, sink)
        except EncodeError as error:
            raise EncodeError(f"{kind.__qualname__}({name}): {error}") from error
        if sink.typed and annotations.get(name, Any) is Any:
            raise EncodeError(f"{kind.__qualname__}({name}) holds dataclasses; annotate the parameter with its type")


@dataclass(frozen=True, slots=True)
class Spawn:
    """What ``Node.spawn`` was asked."""

    actor: Actor | type[Actor] | str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    mailbox: int
    owner: Address | None
    restarts: int

    async def here(self, node: Node, ticket: str = "") -> Ref:
        actor = self.actor
        if not isinstance(actor, str | Actor) and not (isinstance(actor, type) and issubclass(actor, Actor)):
            raise TypeError(f"actor={actor!r} is neither a subclass of Actor, nor an instance of one, nor its import name")
        if isinstance(actor, str):
            actor = reconstruct(load_class(actor), self.args, self.kwargs)
        elif isinstance(actor, type):
            actor = actor(*self.args, **self.kwargs)
        elif self.args or self.kwargs:
            raise ValueError(f"actor {self.name!r} is an instance already; give its class with args and kwargs")
        elif (living := alive(actor)) is not None:
            raise ValueError(f"this instance lives already, as {living}; give its class, or another instance")
        for declared in actor.endpoints.values():
            declared.check_types()
        return await node.lives.start(
            actor, self.name, self.mailbox, owner=self.owner, restarts=self.restarts, ticket=ticket
        )

    async def elsewhere(self, node: Node, on: str, patience: float) -> Ref:
        if isinstance(self.actor, Actor):
            raise ValueError(f"actor {self.name!r} exists in this process; give its class to start it on {on!r}")
        if isinstance(self.actor, type):
            check_arguments(self.actor, portable(list(self.args)), portable(dict(self.kwargs)))
        path = self.actor if isinstance(self.actor, str) else import_name(self.actor)
        ticket = f"{node.id}-{next(_tickets)}"
        target = Address(on, SYSTEM, node.current_incarnation(on))
        owner = str(self.owner) if self.owner is not None else ""
        args, kwargs = portable(list(self.args)), portable(dict(self.kwargs))
        request = (path, self.name, args, kwargs, self.mailbox, owner, self.restarts, ticket)
        try:
            address = await node.call(target, "spawn", request, {}, patience, None)
        except (asyncio.CancelledError, DeadlineExceeded):
            # The answer may be on its way: then the cancellation finds no call, and this finds the actor.
            node.cast(target, "discard", (self.name, ticket), {})
            raise
        return Ref(node, parse_address(address), self.actor if isinstance(self.actor, type) else None)


def alive(actor: Actor) -> Ref | None:
    """Where this instance is an actor now."""
    ref: Ref | None = vars(actor).get("ref")
    life = actor.node.lives.current.get(ref.name) if ref is not None else None
    return ref if life is not None and life.actor is actor else None


async def end_anywhere(node: Node, target: Address, drain: float | None) -> None:
    """What ``Node.stop_actor`` and, without ``drain``, ``Node.kill_actor`` do."""
    if drain is not None and target.node == node.name and target.incarnation in (0, node.incarnation):
        # Not through the system actor: one that stops itself would wait there for its own end.
        existed = await _stop_here(node, target, drain)
    else:
        existed = await _end_there(node, target, drain)
    if not existed:
        raise NoSuchActor(f"node {target.node} has no actor {target.name!r}")


async def _stop_here(node: Node, target: Address, drain: float) -> bool:
    try:
        return await node.lives.end_named(target.name, target.life, drain)
    except Exception as error:
        raise remote_error(error) from error


async def _end_there(node: Node, target: Address, drain: float | None) -> bool:
    system = Address(target.node, SYSTEM, target.incarnation or node.current_incarnation(target.node))
    arguments = (target.key,) if drain is None else (target.key, drain)
    # Its own node bounds the end of an actor; that the node itself is alive is seen by others.
    existed: bool = await node.call(system, "kill" if drain is None else "stop", arguments, {}, LONGEST, None)
    return existed


def _annotations(kind: type[Actor]) -> dict[str, Any]:
    return typing.get_type_hints(kind.__init__)

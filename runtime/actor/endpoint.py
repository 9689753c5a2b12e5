"""Declaring endpoints: the ``@endpoint`` decorator, and what it records of a method.

Owns the checks when a class is made (annotations, reserved names) and the decoding of arguments from plain data, compiled
once for each method.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Concatenate, overload

from ..base.decoding import Decoder, decoder
from ..base.errors import DecodeError
from .typed_endpoint import CallEndpoint, Decorator, P, R, StreamEndpoint

RESERVED = frozenset(("node", "name", "incarnation", "life", "address", "ref"))  # of a Ref
_RESERVED_PARAMETERS = frozenset(("timeout", "returns"))


@dataclass(frozen=True, slots=True)
class EndpointMark:
    """The mark that ``@endpoint`` leaves on a function, for the class that it is in."""

    urgent: bool
    concurrent: bool


@overload
def endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> CallEndpoint[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], AsyncIterator[R]], /) -> StreamEndpoint[P, R]: ...
@overload
def endpoint(*, urgent: bool = False, concurrent: bool = False) -> Decorator: ...
def endpoint(method: Any = None, /, *, urgent: bool = False, concurrent: bool = False) -> Any:
    """Make an ``async def`` method reachable by name; an async generator (``-> AsyncIterator[T]``) is a stream.

    A stream waits its turn in the mailbox and then runs beside the other messages, no faster than its consumer reads.

    urgent: its messages overtake normal ones that wait in the mailbox.
    concurrent: runs at once as a task of its own, beside whatever the actor does, without the mailbox and its order.
    """
    if urgent and concurrent:
        raise TypeError("a concurrent endpoint does not wait in the mailbox; drop urgent=True")

    def mark(function: Any) -> Any:
        if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise TypeError(f"endpoint {function.__qualname__} must be an async def method")
        function.__endpoint__ = EndpointMark(urgent, concurrent)
        return function

    return mark if method is None else mark(method)


class ActorEndpoint:
    """One declared method: how it is delivered and what it takes."""

    def __init__(self, name: str, function: Callable[..., Any], mark: EndpointMark) -> None:
        self.name, self.function = name, function
        self.stream = inspect.isasyncgenfunction(function)
        self.urgent, self.concurrent = mark.urgent, mark.concurrent
        parameters = list(inspect.signature(function).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"endpoint {function.__qualname__}: *{parameter.name} has no declared types; list parameters"
                )
            if parameter.name in _RESERVED_PARAMETERS:
                raise TypeError(f"endpoint {function.__qualname__}: parameter {parameter.name!r} is reserved; rename it")
            if parameter.annotation is parameter.empty:
                raise TypeError(f"endpoint {function.__qualname__}: annotate parameter {parameter.name!r}")
        self._names = [p.name for p in parameters]
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._arity = len(self._names) if self._names == self._positional else -1  # of a call by position
        self._required = {p.name for p in parameters if p.default is p.empty}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.function)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {name: decoder(self._hints[name]) for name in self._names}

    @cached_property
    def returns(self) -> Any:
        """Annotation of the answer; of each item, for a stream."""
        declared = self._hints.get("return", Any)
        if not self.stream or declared is Any:
            return declared
        if typing.get_origin(declared) not in (AsyncIterator, AsyncIterable, AsyncGenerator):
            raise TypeError("annotate an async generator with AsyncIterator[T]")
        return typing.get_args(declared)[0]

    def check_types(self) -> None:
        """Compile all types; TypeError names an annotation that cannot travel, or is not found."""
        try:
            decoder(self.returns)
            _ = self._decoders
        except (TypeError, NameError) as error:
            raise TypeError(f"endpoint {self.function.__qualname__}: {error}") from error

    @cached_property
    def _plan(self) -> list[Decoder]:
        return [self._decoders[name] for name in self._positional]

    def bind(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Plain data from a message as what the function is called with. Raises DecodeError, naming the parameter."""
        if not kwargs and len(args) == self._arity:
            try:
                if len(args) == 1:
                    return (self._plan[0](args[0]),), kwargs
                return tuple([check(value) for check, value in zip(self._plan, args, strict=True)]), kwargs
            except DecodeError:
                pass  # once more, for the name
        return (), self.decode_arguments(args, kwargs)

    def decode_arguments(self, args: Sequence[Any], kwargs: dict[str, Any], *, known_only: bool = False) -> dict[str, Any]:
        """Plain data from a message as keyword arguments. Raises DecodeError, naming the parameter.

        known_only: drop what a caller of a later release adds.
        """
        if known_only:
            args = args[: len(self._positional)]
            kwargs = {name: value for name, value in kwargs.items() if name in self._names}
        if len(args) > len(self._names):
            raise DecodeError(f"{self.name} takes {len(self._names)} arguments, {len(args)} were given")
        given = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name in given or name not in self._decoders:
                raise DecodeError(f"{self.name} has no (further) parameter {str(name)[:80]!r}")
            given[name] = value
        if missing := self._required - given.keys():
            raise DecodeError(f"{self.name} needs {', '.join(sorted(missing))}")
        out = {}
        for name, value in given.items():
            try:
                out[name] = self._decoders[name](value)
            except DecodeError as error:
                raise DecodeError(f"{self.name}({name}): {error}") from error
        return out


async def _run(actor: object, work: Callable[[], Awaitable[None]]) -> None:
    await work()


# what the runtime itself puts in a mailbox
INTERNAL = ActorEndpoint("(internal)", _run, EndpointMark(urgent=True, concurrent=False))

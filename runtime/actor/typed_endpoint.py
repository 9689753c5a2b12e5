"""The types of endpoints for type checkers: a method that is called, cast or read with the types of its declaration.

Owns types alone; nothing here runs. An actor class stands for references to it: to mypy and pyright
``node.ref("w1/counter", Counter)``, a ``Ref``, has the endpoints of ``Counter``. No type system can add a ``timeout`` to
the parameters of another function (PEP 612), so a call with ``timeout`` is checked in its result, not in its arguments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class TypedCall(Protocol[P, R_co]):
    """``await ref.add(3)``, ``ref.add.cast(3)``."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __call__(self, *args: Any, timeout: float, **kwargs: Any) -> Coroutine[Any, Any, R_co]: ...
    def cast(self, *args: P.args, **kwargs: P.kwargs) -> None: ...


class TypedItems(Protocol[R_co]):
    """A ``Stream``: ``async for`` over it, or ``async with`` it first, so that it is closed at the end of the block."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> R_co: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TypedStream(Protocol[P, R_co]):
    """``async for item in ref.items(3)``."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TypedItems[R_co]: ...
    @overload
    def __call__(self, *args: Any, timeout: float, **kwargs: Any) -> TypedItems[R_co]: ...


class CallEndpoint(Protocol[P, R_co]):
    """A decorated ``async def``, as an attribute of its class."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> TypedCall[P, R_co]: ...


class StreamEndpoint(Protocol[P, R_co]):
    """A decorated async generator, as an attribute of its class."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> TypedStream[P, R_co]: ...


class Decorator(Protocol):
    """The type of ``@endpoint(urgent=True)``."""

    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> CallEndpoint[P, R]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /) -> StreamEndpoint[P, R]: ...

"""A reference to an actor: where it is, and its endpoints as methods.

Owns the calling syntax. Where the actor is and how a message gets there is the business of the ``EndpointCaller`` behind the
reference. References are cheap and may outlive the actor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar, Protocol, TypeVar, cast, overload

from ..base.address import Address
from .endpoint import RESERVED, ActorEndpoint
from .streams import Stream

T = TypeVar("T")


class EndpointCaller(Protocol):
    """Sends what a reference is asked to send: one call, stream or cast."""

    def call(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Coroutine[Any, Any, Any]:
        """Send a call. ``patience``: seconds to wait for the answer."""

    def stream(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Stream[Any]:
        """Open a stream. ``patience``: seconds to wait for each item."""

    def cast(self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def current_incarnation(self, node: str) -> int: ...


class HasRef(Protocol):
    """An actor by its reference: a ``Ref``, one that is typed as its actor's class, or the actor itself."""

    @property
    def ref(self) -> Ref: ...


class HasEndpoints(Protocol):
    """An actor class, as far as references look at it: its endpoints by name."""

    endpoints: ClassVar[dict[str, ActorEndpoint]]


CALL_TIMEOUT = 30.0  # seconds


class Method:
    """An endpoint of a reference that knows its class, and so that this one is no stream."""

    __slots__ = ("_caller", "_name", "_returns", "_target")

    def __init__(self, caller: EndpointCaller, target: Address, name: str, returns: Any = None) -> None:
        self._caller = caller
        self._target = target
        self._name = name
        self._returns = returns

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


class StreamMethod:
    """A streaming endpoint of a reference that knows its class."""

    __slots__ = ("_caller", "_name", "_returns", "_target")

    def __init__(self, caller: EndpointCaller, target: Address, name: str, returns: Any) -> None:
        self._caller = caller
        self._target = target
        self._name = name
        self._returns = returns

    def __call__(self, *args: Any, timeout: float = CALL_TIMEOUT, returns: Any = None, **kwargs: Any) -> Stream[Any]:
        """Return the items, for ``async for``. ``timeout``: seconds to wait for each; ``returns``: annotation of one
        item.
        """
        wanted = self._returns if returns is None else returns
        return self._caller.stream(self._target, self._name, args, kwargs, timeout, wanted)


class AnyMethod(Method):
    """An endpoint of a reference without a class: how the result is used says whether it is a call or a stream."""

    __slots__ = ()

    @overload
    def __call__(self, *args: Any, timeout: float = ..., returns: type[T], **kwargs: Any) -> CallOrStream[T]: ...
    @overload
    def __call__(self, *args: Any, timeout: float = ..., returns: Any = ..., **kwargs: Any) -> CallOrStream[Any]: ...
    def __call__(self, *args: Any, timeout: float = CALL_TIMEOUT, returns: Any = None, **kwargs: Any) -> Any:
        """Return the call, to be awaited or read with ``async for``; see ``Method`` and ``StreamMethod``."""
        call = self._caller.call(self._target, self._name, args, kwargs, timeout, returns)
        return CallOrStream(call, lambda: self._caller.stream(self._target, self._name, args, kwargs, timeout, returns))


class CallOrStream(Coroutine[Any, Any, T]):
    """A call (awaited, or made a task) or a stream (``async for``, ``async with``), whichever it is used as first."""

    __slots__ = ("_call", "_make", "_stream")

    def __init__(self, call: Coroutine[Any, Any, T], make: Callable[[], Stream[Any]]) -> None:
        self._call, self._make = call, make
        self._stream: Stream[Any] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._call.__await__()

    def send(self, value: Any) -> Any:
        return self._call.send(value)

    def throw(self, *args: Any) -> Any:
        return self._call.throw(*args)

    def close(self) -> None:
        self._call.close()

    def __aiter__(self) -> Stream[Any]:
        if self._stream is None:
            self._call.close()  # never started; closed, it does not complain of not being awaited
            self._stream = self._make()
        return self._stream

    async def __aenter__(self) -> Stream[Any]:
        return await self.__aiter__().__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self.__aiter__().__aexit__(*error)

    async def aclose(self) -> None:
        await self.__aiter__().aclose()


class Ref:
    """``await ref.add(3)``, ``ref.add.cast(3)``, ``async for item in ref.items()``.

    One that is made with its actor's class is that class to type checkers (``typed_endpoint.py``); ``.ref`` is this there.
    """

    __slots__ = ("__dict__", "_actor", "_caller", "address")

    def __init__(self, caller: EndpointCaller, address: Address, actor: type[HasEndpoints] | None = None) -> None:
        self._caller = caller
        self.address = address
        self._actor = actor

    @property
    def ref(self) -> Ref:
        """Itself, as an actor's ``ref`` is."""
        return self

    @property
    def node(self) -> str:
        return self.address.node

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def incarnation(self) -> int:
        """The incarnation of the node; 0 when the reference follows a node that is not up."""
        return self.address.incarnation or self._caller.current_incarnation(self.address.node)

    @property
    def life(self) -> int:
        """The life of the actor; 0 when the reference follows the current one."""
        return self.address.life

    def __getattr__(self, endpoint: str) -> AnyMethod:
        """Made at first use, then an attribute. (Its type belongs to a reference without a class, and so fits every use.)"""
        if endpoint.startswith("_") or endpoint in RESERVED:
            raise AttributeError(endpoint)
        method: Any
        if self._actor is None:
            method = AnyMethod(self._caller, self.address, endpoint)
        elif (declared := self._actor.endpoints.get(endpoint)) is None:
            raise AttributeError(f"{self._actor.__qualname__} has no endpoint {endpoint!r}")
        else:
            made = StreamMethod if declared.stream else Method
            method = made(self._caller, self.address, endpoint, declared.returns)
        self.__dict__[endpoint] = method
        return cast(AnyMethod, method)

    def __str__(self) -> str:
        return str(self.address)

    def __repr__(self) -> str:
        return f"Ref({self.address})"

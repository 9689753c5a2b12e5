"""A reference that follows a supervised child through restarts and moves to other nodes.

Asks the supervisor where the child is: before the first call, and again after one that failed because the child was away. A
call that failed is not sent twice: whether it ran is for the caller to know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast, overload

from .actor.actor import Actor
from .actor.ref import HasRef
from .base.errors import Away
from .node.actor_classes import ClassLoader
from .node.node import Node

A = TypeVar("A", bound=Actor)


class Supervised(Generic[A]):
    """A supervised child by its name: ``await child.add(3)`` calls it; ``(await child.ref()).items()`` is a stream of it.

    Answers have the types of the child's class, which the supervisor names. actor: that class, for type checkers, which then
    know the endpoints of what ``ref()`` returns, and for a class that this process could not import. wait: seconds that a
    call waits while the child is not up; then it raises DeadlineExceeded. A call to one that just died raises an ``Away``.
    """

    @overload
    def __init__(self: Supervised[Any], node: Node, supervisor: HasRef, name: str, *, wait: float = ...) -> None: ...
    @overload
    def __init__(self, node: Node, supervisor: HasRef, name: str, actor: type[A], *, wait: float = ...) -> None: ...
    def __init__(
        self, node: Node, supervisor: HasRef, name: str, actor: type[A] | None = None, *, wait: float = 5.0
    ) -> None:
        self._node = node
        self._supervisor = supervisor.ref
        self._name = name
        self._actor = actor
        self._wait = wait
        self._known: Any = None  # a Ref
        self._class_is_known = actor is not None

    async def ref(self) -> A:
        """Return a reference to the current life, like ``Node.ref``.

        The supervisor is asked each time, because a failed call through an earlier reference is not seen here.
        """
        address = await self._supervisor.find(self._name, timeout=self._wait, returns=str)
        if not self._class_is_known:
            await self._learn_class()
        self._known = self._node.ref(address) if self._actor is None else self._node.ref(address, self._actor)
        known: A = self._known
        return known

    async def _learn_class(self) -> None:
        """Ask the supervisor for the child's class, once. Without one, references know no types."""
        name = await self._supervisor.class_of(self._name, timeout=self._wait, returns=str)
        if name:
            with contextlib.suppress(ImportError, ValueError):  # of code that this process does not have
                self._actor = cast(type[A], await ClassLoader().load(name))
        self._class_is_known = True

    def __getattr__(self, endpoint: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if endpoint.startswith("_"):
            raise AttributeError(endpoint)

        async def call(*args: Any, **kwargs: Any) -> Any:
            ref = await self.ref() if self._known is None else self._known
            try:
                return await getattr(ref, endpoint)(*args, **kwargs)
            except Away:
                self._known = None
                raise

        return call

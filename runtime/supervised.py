"""A reference that follows a supervised child through restarts and moves to other nodes.

Asks the supervisor where the child is: before the first call, and again after one that failed because the child was away. A
call that failed is not sent twice: whether it ran is for the caller to know.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, overload

from .actor.actor import Actor
from .actor.ref import HasRef
from .base.errors import Away
from .node.node import Node

A = TypeVar("A", bound=Actor)


class Supervised(Generic[A]):
    """``await child.add(3)`` as of a ``Ref``; streams: ``(await child.ref()).items()``.

    supervisor: where it is asked; actor: the child's class, so that answers are of its types. wait: seconds that a call
    waits while the child is not up; then it raises DeadlineExceeded. A call to one that has just died raises an ``Away``.
    Type checkers know the endpoints of what ``ref()`` returns.
    """

    @overload
    def __init__(self: Supervised[Any], node: Node, supervisor: HasRef, name: str, *, wait: float = ...) -> None: ...
    @overload
    def __init__(self, node: Node, supervisor: HasRef, name: str, actor: type[A], *, wait: float = ...) -> None: ...
    def __init__(
        self, node: Node, supervisor: HasRef, name: str, actor: type[A] | None = None, *, wait: float = 5.0
    ) -> None:
        self._node, self._supervisor, self._name, self._actor, self._wait = node, supervisor.ref, name, actor, wait
        self._known: Any = None  # a Ref

    async def ref(self) -> A:
        """Return a reference to the current life, like ``Node.ref``.

        The supervisor is asked each time, because a failed call through an earlier reference is not seen here.
        """
        address = await self._supervisor.find(self._name, timeout=self._wait, returns=str)
        self._known = self._node.ref(address) if self._actor is None else self._node.ref(address, self._actor)
        known: A = self._known
        return known

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

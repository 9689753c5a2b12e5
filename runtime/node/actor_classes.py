"""Actor classes by import name, and their constructor arguments as plain data.

Owns import names (only importable subclasses of ``Actor``; nothing is unpickled) and the check of arguments against the
annotations of ``__init__``, on the way out and on the way in.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ..actor.actor import Actor
from ..base.buffers import Sink
from ..base.codec import encode, pack, unpack
from ..base.decoding import decode
from ..base.errors import DecodeError, EncodeError
from ..base.names import import_module, import_name
from ..base.schema import field_names


def load_class(name: str) -> type[Actor]:
    """Return the actor class of that import name. Raises ImportError, ValueError."""
    module, colon, path = name.partition(":")
    if not colon:
        raise ValueError(f"actor class {name!r} is not of the form module:Qualname")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise ValueError(f"{name} is not a subclass of Actor")
    return found


class ClassLoader:
    """Loads classes whose modules may be news to this process: beside the loop, so that a node which imports for seconds is
    not taken for one that hangs."""

    def __init__(self) -> None:
        self._begun: set[str] = set()  # modules that may be half imported

    async def load(self, name: str) -> type[Actor]:
        """Load the class. Raises the errors of ``load_class``."""
        module = name.partition(":")[0]
        if module in sys.modules and module not in self._begun:
            return load_class(name)
        self._begun.add(module)
        try:
            try:
                found = await asyncio.to_thread(load_class, name)
            except NotImplementedError:  # a loop under virtual time has no threads, and no other waiters
                found = load_class(name)
        except Exception:  # not for a cancellation: the thread goes on
            self._begun.discard(module)
            raise
        self._begun.discard(module)
        return found


def construct(kind: type[Actor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Actor:
    """Return an instance, made from arguments that came as plain data. Raises DecodeError, naming the parameter."""
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
    """Return an instance on this node, as if the arguments had traveled."""
    check_arguments(kind, args, kwargs)
    sink = Sink()
    body = pack([encode(list(args), sink), encode(dict(kwargs), sink)])
    plain = unpack(body, [memoryview(buffer) for buffer in sink.buffers])
    return construct(kind, plain[0], plain[1])


def portable(value: Any) -> Any:
    """Return the value with its actor classes, in lists, dicts and dataclasses, as import names."""
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


def _annotations(kind: type[Actor]) -> dict[str, Any]:
    return typing.get_type_hints(kind.__init__)

"""Errors of calls, by who is at fault.

    RuntimeFault
      Away              no actor is there: one of the next three
        NodeDown        the callee's node is unknown or was declared down (or: is fenced, being an old incarnation)
        ActorDied       the actor was stopped before it answered
        NoSuchActor     the node is up and has no actor, or the actor no endpoint, of that name
      MailboxFull       the receiver, or the way to it, takes no more now; retry later or send less
      DeadlineExceeded  no answer in time; the callee's work was cancelled
      RemoteError       the endpoint raised: its own error, as text with the traceback
      CodecError        a value does not fit the annotation, or a limit
        EncodeError     the sender's value cannot travel
        DecodeError     what arrived is not of the declared type

Owns the types and their numeric tags on the wire (the allow-list of what may be raised from a reply).
"""

from __future__ import annotations

import traceback


class RuntimeFault(Exception):
    """Base of all errors of calls."""


class Away(RuntimeFault):
    """An actor that is not there (now); its supervisor may start it again, perhaps elsewhere."""


class NodeDown(Away):
    pass


class ActorDied(Away):
    pass


class NoSuchActor(Away):
    pass


class MailboxFull(RuntimeFault):
    pass


class DeadlineExceeded(RuntimeFault, TimeoutError):
    pass


class RemoteError(RuntimeFault):
    """``kind``: name of the exception's class; ``text``: its message; ``trace``: the callee's traceback as text."""

    def __init__(self, kind: str, text: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text
        self._trace = trace
        self._raised: BaseException | None = None  # in this process
        if trace:
            self.add_note(f"--- where it was raised ---\n{trace}")  # shown with a traceback, not in ``str``

    @property
    def trace(self) -> str:
        """Made when it is asked for: each actor of a long chain of calls would write those of all below it."""
        if not self._trace and self._raised is not None:
            self._trace = "".join(traceback.format_exception(self._raised))
        return self._trace


def remote_error(error: BaseException) -> RemoteError:
    """Return an endpoint's exception as its caller sees it. In the same process the exception itself is the cause, and
    shown.
    """
    fault = RemoteError(type(error).__name__, text_of(error)[:TEXT_LIMIT])
    fault.__cause__ = fault._raised = error
    return fault


def text_of(error: BaseException) -> str:
    """Return the text of an exception, even if its ``__str__`` raises, so that the caller is always answered."""
    try:
        return str(error)
    except Exception as why:
        return f"(its text cannot be made: {type(why).__name__})"


class CodecError(RuntimeFault, ValueError):
    pass


class EncodeError(CodecError):
    pass


class DecodeError(CodecError):
    pass


_TAGS: dict[int, type[RuntimeFault]] = {
    1: NodeDown,
    2: ActorDied,
    3: NoSuchActor,
    4: MailboxFull,
    5: DeadlineExceeded,
    6: RemoteError,
    7: EncodeError,
    8: DecodeError,
}
_BY_TYPE = {kind: tag for tag, kind in _TAGS.items()}
TEXT_LIMIT = 64 << 10  # characters of an error text or traceback that travel


def fault_to_wire(fault: RuntimeFault) -> list[int | str]:
    """Return [tag, kind, text, trace], for ``fault_from_wire``."""
    if isinstance(fault, RemoteError):
        return [_BY_TYPE[RemoteError], *map(_plain, (fault.kind[:256], fault.text[:TEXT_LIMIT], fault.trace[-TEXT_LIMIT:]))]
    return [_BY_TYPE[type(fault)], "", _plain(str(fault)[:TEXT_LIMIT]), ""]


def _plain(text: str) -> str:
    """Without lone surrogates, as names of files may hold them: no UTF-8 stands for them."""
    return text.encode(errors="backslashreplace").decode()


def fault_from_wire(tag: int, kind: str, text: str, trace: str) -> RuntimeFault:
    """Return the error to raise at the caller; an unknown tag gives a RemoteError."""
    known = _TAGS.get(tag, RemoteError)
    if known is RemoteError:
        return RemoteError(kind or f"error {tag}", text, trace)
    return known(text)

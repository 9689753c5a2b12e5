"""Fatal exceptions in an actor: SystemExit, GeneratorExit, KeyboardInterrupt.

Owns the rule: each ends the actor that raised it, is answered and reported like any other crash, and never ends its node. An
interrupt is besides passed on, as Ctrl-C must end the program, except where the process ignores interrupts: there only the
code itself can have raised it.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

from .errors import remote_error

FATAL = (SystemExit, GeneratorExit, KeyboardInterrupt)


def interrupts(error: BaseException) -> bool:
    """Return True if the exception must end the program, for example after Ctrl-C."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


async def contained(work: Callable[[], Awaitable[None]]) -> None:
    """Run this in a task of its own without ending the loop. Raises RemoteError in place of what is fatal."""
    try:
        await work()
    except FATAL as error:
        if interrupts(error):
            raise
        raise remote_error(error) from error

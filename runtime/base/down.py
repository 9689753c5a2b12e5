"""The end of a node's or an actor's life as its monitors are notified of it: the ``Down`` message (OTP's ``DOWN``).

Owns the record, the causes that have fixed words, and the rule which of them count as failures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ...transport.address import PeerId
from .address import Address

log = logging.getLogger("blockwright.runtime")
CAUSE_LIMIT = 500  # characters
STOPPED, KILLED = "stopped", "killed"  # causes; others start with "crashed: ", "start failed: ", "linked ", "owner "


@dataclass(frozen=True, slots=True)
class Down:
    """A life of a node, or of an actor, ended. ``cause`` for nodes: see ``cluster``, "killed", "replaced by incarnation N";
    for actors: "stopped", "crashed: ...", "killed", "node down: ...", "no such actor", ... (``node/lifecycle.py``)."""

    node: str
    incarnation: int
    cause: str
    actor: str = ""  # its name, where an actor was monitored
    life: int = 0  # of the actor; 0 if there was none

    @property
    def ref(self) -> str:
        """Address of the actor, or identity of the node."""
        if self.actor:
            return str(Address(self.node, self.actor, self.incarnation, self.life))
        return str(PeerId(self.node, self.incarnation))


OnDown = Callable[[Down], None]


def abnormal(cause: str) -> bool:
    """Return True if an end for this cause counts as a failure: every end but an orderly stop."""
    return cause != STOPPED


def notify(monitor: OnDown, down: Down) -> None:
    """Run a callback of the application, whose error must not stop the runtime."""
    try:
        monitor(down)
    except Exception:
        log.exception("a monitor of %s#%d raised", down.node, down.incarnation)

"""Receivers of link traffic: which part of the application gets tensors that came over a link.

Owns the receivers by class of traffic; what has none, and what a receiver raises, are dead letters.
"""

from __future__ import annotations

import logging

from ...transport.address import PeerId
from ...transport.wire import Traffic
from ..actor.actor import OnLink
from ..base.dead_letters import DeadLetters
from ..base.errors import text_of


class LinkReceivers:
    """The receivers of link messages of one node. ``receivers`` may grow later."""

    def __init__(self, node: PeerId, receivers: dict[Traffic, OnLink], dead: DeadLetters) -> None:
        self._node = node
        self._receivers = receivers
        self._dead = dead

    def on_transfer(self, sender: PeerId, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        """Handle a complete message of a link."""
        if (receive := self._receivers.get(kind)) is None:
            text = f"node {self._node} got {kind.name} traffic from {sender} and has no receiver for it; see Node.on_link"
            self._dead.drop("NoReceiver", sender, text, level=logging.ERROR)
            return
        try:
            receive(sender.name, header, buffers)
        except Exception as error:
            text = f"the receiver of {kind.name} traffic from {sender} raised {type(error).__name__}: {text_of(error)}"
            self._dead.drop("ReceiverFailed", sender, text, level=logging.ERROR, error=error)

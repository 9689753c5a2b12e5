"""Joining a running cluster by hand, from another terminal or another machine.

Owns the steps: ask the head for a number, open a node under it, run its entry, leave in order. The head admits any node that
brings an invitation or a join text (over TCP) or may enter its directory (over a socket file); nothing else is asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...transport.address import own_address, tcp_parts
from ...transport.curve import NodeKeys
from ...transport.errors import AddressError, PeerGone
from ...transport.handshake import Admission
from ...transport.join_request import ask_to_join
from ..base import envelope
from ..base.clock import first_within
from ..node.head_follower import MemberTerms
from ..node.node import Node
from ..node.stall_watch import StallWatch
from .invitations import PREFIX, Invitation
from .join_text import NODE, JoinText
from .join_text import PREFIX as TEXT

log = logging.getLogger("blockwright.runtime")
STALL = 1.0  # seconds without a turn of the loop after which the cause is logged
_RECEIVED = "was received"
LEAVE_PATIENCE = 1.0  # seconds that the head may take to hear that a node leaves


def default_name() -> str:
    """Unique among the nodes of one user: host and process."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()).strip("-")[:40] or "node"
    return f"{host}-{os.getpid()}"


async def join(where: str, *, name: str = "", listen: str = "") -> Node:
    """Return a node that is a member of a cluster; stop it to leave.

    where: an invitation of its head, a join text for nodes, or the head's address where there are no keys. The node makes
    its own.

    listen: "tcp://HOST:PORT", where others reach this node; by default beside the head's socket file, or at the address
    of this machine that faces the head. Raises TransportError: HandshakeRefused (with the head's reason), PeerGone,
    KeysError, AddressError.
    """
    node = await enter(where, NODE, name=name, listen=listen)
    node.peering.announce_ready()
    return node


async def enter(where: str, role: str, *, name: str = "", listen: str = "", legacy: dict[str, Any] | None = None) -> Node:
    """Do what ``join`` does for a node of that role, but leave it to the caller to announce that it is ready.

    legacy: see ``Node``. Raises what ``join`` raises.
    """
    endpoints, secret = [where], ""
    keys = NodeKeys.generate() if where.startswith((TEXT, PREFIX)) else None
    if where.startswith(TEXT):
        text = JoinText.parse(where)
        text.check_role(role)
        endpoints, secret = text.endpoints, text.ticket
    elif where.startswith(PREFIX):
        invitation = Invitation.parse(where)
        endpoints, secret = [invitation.endpoint], invitation.secret
    address, admission = await _admitted(endpoints, name or default_name(), keys, secret)
    own = admission.own
    if address.startswith("tcp://"):
        where, directory = listen or f"tcp://{own_address(*tcp_parts(address))}:0", None
    else:
        where, directory = listen, Path(address.removeprefix("ipc://")).parent
    node = Node(
        own.name,
        incarnation=own.incarnation,
        directory=directory,
        listen=where or True,
        keys=keys,
        heartbeat_interval=admission.heartbeat,
        legacy=legacy,
    )
    try:
        await node.start()
    except AddressError as error:
        if listen:
            raise AddressError(f"{error}; choose another --listen tcp://HOST:PORT") from None
        raise
    node.last_words = lambda: _leave(node)
    try:
        terms = MemberTerms(admission.heartbeat, admission.silence, admission.orphan_grace)
        node.peering.join(admission.head, address, terms)
    except BaseException:
        await node.stop()
        raise
    return node


async def _admitted(endpoints: Sequence[str], name: str, keys: NodeKeys | None, secret: str) -> tuple[str, Admission]:
    """Ask the head to join, at each address until one answers; return that address and the answer. Raises PeerGone."""
    silent = []
    for endpoint in endpoints:
        try:
            return endpoint, await ask_to_join(endpoint, name, keys, secret)
        except PeerGone as error:
            silent.append(str(error))
    raise PeerGone("; ".join(silent))


async def stay(node: Node, report: Callable[[str], None]) -> bool:
    """Be a member until the head ends it, or SIGINT or SIGTERM do; then leave in order. Whether the end was in order.

    ``report`` that it has joined, and at last why it leaves: the reader of the first may send a signal at once.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.close, f"{number.name} {_RECEIVED}")
    report(f"joined {node.head} and listens at {node.endpoint}")
    # The head may be on another machine: who looks after this one reads it here.
    watch = StallWatch(node.actors.instances.values, STALL, lambda sentence: log.warning("%s", sentence), lambda: None)
    try:
        await node.closed.wait()
        report(f"leaves: {node.farewell}")
        return node.dismissed.is_set() or node.farewell.endswith(_RECEIVED)
    finally:
        watch.close()
        await node.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _leave(node: Node) -> None:
    """Tell the head, unless it is the head that ends this node, and wait until it has heard."""
    head = node.table.find(node.head) if node.head is not None else None
    if head is None or node.dismissed.is_set():
        return
    node.peering.notify(head, [envelope.LEAVE])
    heard = asyncio.ensure_future(node.dismissed.wait())
    await first_within(node.clock, LEAVE_PATIENCE, [heard])
    heard.cancel()

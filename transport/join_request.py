"""The join request: asks a head, before there is a node, to join its cluster and under which incarnation; or, for a member
that has lost its head, to be taken back.

Owns the connection for that request, which ends with the answer. The node itself sends everything after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

import zmq

from . import handshake as greeting
from .address import split_key, tcp_parts
from .curve import NodeKeys, check_endpoint
from .errors import AddressError, KeyRefused, KeysError, PeerGone
from .handshake import Admission, JoinRequest, ReturnRequest
from .outbound import DISCONNECTED, KEY_REFUSED, LOST_EVENTS, open_connection, open_dealer, read_loss

SHOWN = 40  # characters shown of a bad address; it may be an invitation, whose secret comes later
_NOBLOCK = int(zmq.NOBLOCK)
_PATIENCE = 10.0  # seconds for the answer of the head


async def ask_to_join(address: str, name: str, keys: NodeKeys | None, secret: str = "") -> Admission:
    """Ask the head at ``address`` to join its cluster, and return its answer.

    keys: of the node that asks. secret: of its invitation, if the address names a key. Raises HandshakeRefused,
    PeerGone, AddressError, KeysError.
    """
    return await ask_head(address, JoinRequest(name, secret, release=greeting.own_release()), keys)


async def _find_host(where: str) -> None:
    """Raise PeerGone if the address begins with a name that this machine cannot resolve: libzmq would try for ever."""
    host, port = tcp_parts(where)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = f"this machine finds no address of {host} ({error.strerror or error}); check the name"
        raise PeerGone(f"{where} cannot be joined: {why}") from None


async def ask_head(address: str, request: JoinRequest | ReturnRequest, keys: NodeKeys | None) -> Admission:
    """Send one request to the head at ``address``, and return its answer. Raises what ``ask_to_join`` raises."""
    where = split_key(address)[0]
    if address.startswith("tcp://"):
        try:
            check_endpoint(address, keys)
        except KeysError:  # a node that joins by hand has no keys to give
            raise KeysError(f"{where} can be reached from other machines; join it with an invitation of its head") from None
    elif not address.startswith("ipc:///"):
        raise AddressError(f"{address[:SHOWN]!r} is no invitation, and neither tcp://HOST:PORT nor ipc:///PATH")
    if where.startswith("tcp://"):
        await _find_host(where)
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = open_dealer(context, address, keys, None)
    monitor = dealer.get_monitor_socket(LOST_EVENTS)

    def look() -> None:
        if answered.done():
            return
        try:
            answered.set_result(dealer.recv(_NOBLOCK))
        except zmq.Again:
            if (cause := read_loss(monitor)) is not None:
                absent = f"{cause} before an answer came; is there the head of a running cluster?"
                kind = KeyRefused if cause == KEY_REFUSED else PeerGone
                answered.set_exception(kind(f"{where} cannot be joined: {absent if cause == DISCONNECTED else cause}"))

    try:
        for end in (dealer, monitor):
            loop.add_reader(end.fileno(), look)
        open_connection(dealer, address, request.pack())
        loop.call_soon(look)  # the descriptors are edge-triggered
        async with asyncio.timeout(_PATIENCE):
            return greeting.parse_admission(await answered)
    except TimeoutError:
        raise PeerGone(f"no node at {where} answered within {_PATIENCE:g} s") from None
    finally:
        for end in (dealer, monitor):
            loop.remove_reader(end.fileno())
        dealer.disable_monitor()
        monitor.close(linger=0)
        context.destroy(linger=0)

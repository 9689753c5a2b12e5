"""The checks of ``doctor --join``: what would hinder a process on this machine from joining a server in its text's role.

They follow its way: the text, an address, the head's key and its answer, the way back, the release, the clock.
The first that fails is the last, since those behind it need it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .check import FAILED, OK, WARNING, Check

if TYPE_CHECKING:
    from ...runtime.base.node_view import NodeRelease
    from ...runtime.cluster.join_text import JoinText

REACH = 3.0  # seconds for a connection to the head
CLOCK = 60.0  # seconds that clocks may differ before it is worth a word
NONE = "make another with blockwright keys join"


def examine_join(where: str, check_port: Callable[[], Check] | None = None) -> Iterator[Check]:
    """Yield the checks. ``where``: as for ``--join``. ``check_port``: of the port that a gateway would use."""
    from ...runtime.cluster.join_text import GATEWAY

    text, check = read_text(where)
    yield check
    if text is None:
        return
    if text.role == GATEWAY and check_port is not None:
        yield check_port()
    ways = [check_address(address) for address in text.addresses]
    reached = any(way.status == OK for way in ways)
    for way in ways:
        yield Check(way.name, WARNING, way.text, way.fix) if reached and way.status == FAILED else way
    if reached:
        yield from join_for_a_moment(text)


def read_text(where: str, now: float | None = None) -> tuple[JoinText | None, Check]:
    """Return the join text, if it can be used, and the check of it. ``now``: this clock's Unix time."""
    from ...runtime.cluster.invitations import given
    from ...runtime.cluster.join_text import NODE, WORKER, JoinText, moment
    from ...transport.errors import AddressError

    try:
        text = JoinText.parse(given(where, WORKER))
        if text.role == NODE:  # it joins a cluster without a server
            text.check_role(WORKER)
    except AddressError as error:
        return None, failed("join text", str(error))
    found = f"{text.id} for the role {text.role}, valid until {moment(text.expires)}"
    if text.expires <= (time.time() if now is None else now):
        return text, Check("join text", WARNING, f"{found}, which is over by this clock", NONE)
    return text, Check("join text", OK, found)


def check_address(address: str) -> Check:
    """Check that something listens at an address of the head."""
    from ...transport.address import tcp_parts

    host, port = tcp_parts(address)
    try:
        with socket.create_connection((host, port), timeout=REACH):
            return Check("address", OK, f"{host}:{port} is reached")
    except OSError as error:
        why = error.strerror or str(error)
        fix = f"start the server with --listen {address}, and let this machine reach that port"
        return Check("address", FAILED, f"{host}:{port} is not reached ({why})", fix)


def join_for_a_moment(text: JoinText) -> Iterator[Check]:
    """Join as the process would, ask the head, and leave."""
    from ...runtime.base.loop import run as run_loop

    found: list[Check] = []
    run_loop(_visit(text, found))
    yield from found


async def _visit(text: JoinText, found: list[Check]) -> None:
    from ...actors.member_calls import JoinRefused, look
    from ...runtime.cluster.joining import enter
    from ...transport.errors import TransportError

    try:
        node = await enter(text.pack(), text.role, name=f"doctor-{os.getpid()}")
    except TransportError as error:
        found.append(failed("head", str(error)))
        return
    try:
        found.append(Check("head", OK, f"{node.head} takes this join text, and its key is the one of the text"))
        try:
            why, ahead = await look(node)
        except JoinRefused as error:
            found.append(failed("way back", str(error)))
            return
        found.append(
            Check("way back", OK, f"the head reaches {node.endpoint.partition('?')[0]}, as it would a {text.role}'s port")
        )
        found.append(failed("release", why) if why else check_release(node.releases()))
        found.append(check_clock(ahead))
    finally:
        await node.stop()


def check_release(known: Sequence[NodeRelease]) -> Check:
    """Check the release. ``known``: of this node and of the head, whose protocols have a version in common."""
    here, head = known[0], known[-1]
    if here.release == head.release:
        return Check("release", OK, "the same as the head's")
    return Check("release", OK, f"{here.release} here and {head.release} at the head, which speak to each other")


def check_clock(ahead: float) -> Check:
    """Check the clock, which is ``ahead`` of the head's by these seconds."""
    said = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the head's"
    if abs(ahead) <= CLOCK:
        return Check("clock", OK, said)
    return Check("clock", WARNING, said, "set both by NTP: times in logs differ, and join texts expire by the head's clock")


def failed(name: str, sentence: str) -> Check:
    """Return a failure from a sentence that ends with its remedy."""
    problem, _, remedy = sentence.rpartition("; ")
    return Check(name, FAILED, problem or sentence, remedy if problem else NONE)

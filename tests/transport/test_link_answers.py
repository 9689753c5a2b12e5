"""What a receiver's answers may do to a link: nothing, when they are old or come twice."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.link_kind import LinkKind
from blockwright.tests.transport.link_rig import B, Rig
from blockwright.transport import link_wire
from blockwright.transport.errors import PeerGone
from blockwright.transport.link_wire import Welcome
from blockwright.transport.wire import Traffic

KV, MIB = Traffic.KV, 1 << 20


async def test_answers_that_come_late_or_twice_do_no_harm() -> None:
    rig = Rig()
    to_b = rig.a.link(B)
    first = to_b.send(KV, b"first", [bytes(MIB)])
    await rig.pass_time(0.02)
    assert first.done
    old = link_wire.pack_welcome(Welcome(1, LinkKind.FRAMES, False, (0, 0, 0), (0, 0, 0)))
    rig.a.on_frames(B, [memoryview(old)])
    second = to_b.send(KV, b"second", [bytes(MIB)])
    rig.break_connection()
    rig.a.on_frames(B, [memoryview(old)])  # the link asks anew soon; this is no answer to that
    await rig.pass_time(0.2)
    assert second.done
    assert [header for _, _, header, _ in rig.got] == [b"first", b"second"]
    third = to_b.send(KV, b"third", [bytes(MIB)])
    to_b.gone("the receiver has ended")
    rig.a.on_frames(B, [memoryview(link_wire.pack_ack((0, 99, 0)))])
    with pytest.raises(PeerGone, match="the receiver has ended"):
        await third
    rig.close()

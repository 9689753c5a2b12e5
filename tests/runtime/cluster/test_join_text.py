"""Join texts and key folders: what is made is taken, and everything else is refused by one sentence."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.join_text import PREFIX, JoinText, JoinTexts, check_addresses
from blockwright.runtime.cluster.key_folder import SECRET, make_keys, read_keys
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import AddressError, HandshakeRefused, KeysError
from blockwright.transport.handshake import LONGEST, JoinRequest, parse

KEYS = NodeKeys.generate()
TEXTS = JoinTexts(KEYS)
TEXT = TEXTS.issue(["10.0.0.1:7000", "tcp://head.example:7000"], "worker", 1000)


def test_a_text_says_where_the_head_is_and_admits_its_role_until_it_expires() -> None:
    again = JoinText.parse(f" {TEXT.pack()}\r\n")
    assert again == TEXT
    assert again.endpoints == [f"tcp://{at}:7000?key={KEYS.name}" for at in ("10.0.0.1", "head.example")]
    assert TEXTS.check(again.ticket, 999.9) == "worker"
    assert JoinTexts(KEYS).check(again.ticket, 0.0) == "worker", "the head remembers nothing"
    assert TEXT.signature not in repr(TEXT)
    again.check_role("worker")
    with pytest.raises(AddressError, match=r"admits the role worker, and this is a node; make one with .* --role node"):
        again.check_role("node")


def test_a_ticket_fits_in_a_greeting_with_the_longest_name() -> None:
    greeting = JoinRequest("n" * 64, TEXT.ticket).pack()
    assert len(greeting) <= LONGEST
    assert parse(greeting) == JoinRequest("n" * 64, TEXT.ticket)


@claim("A join text that is expired, revoked, foreign or changed is refused with a sentence", of="actor-runtime")
@pytest.mark.parametrize(
    ("texts", "ticket", "now", "said"),
    [
        (TEXTS, TEXT.ticket, 1000.0, f"{TEXT.id} expired at 1970-01-01 00:16 UTC"),
        (JoinTexts(KEYS, [TEXT.id]), TEXT.ticket, 0.0, f"{TEXT.id} is revoked"),
        (JoinTexts(NodeKeys.generate()), TEXT.ticket, 0.0, "not of this cluster"),
        (TEXTS, TEXT.ticket.replace("worker", "node"), 0.0, "not of this cluster, or was changed"),
        (TEXTS, TEXT.ticket.replace(".1000.", ".9999."), 0.0, "not of this cluster, or was changed"),
        (TEXTS, TEXT.ticket[:-1], 0.0, "not of this cluster, or was changed"),
        (TEXTS, TEXT.ticket.replace(".1000.", ".1e3."), 0.0, "cannot be read"),
        (TEXTS, PREFIX, 0.0, "cannot be read"),
    ],
    ids=("expired", "revoked", "foreign", "role", "expiry", "code", "time", "empty"),
)  # fmt: skip
def test_what_the_head_refuses(texts: JoinTexts, ticket: str, now: float, said: str) -> None:
    with pytest.raises(HandshakeRefused, match=said) as refused:
        texts.check(ticket, now)
    assert TEXT.signature not in str(refused.value)
    assert "blockwright keys join" in str(refused.value)


def test_no_part_of_a_text_is_read_as_a_text() -> None:
    whole = TEXT.pack()
    for end in range(len(whole)):
        with pytest.raises(AddressError, match="cannot be read; copy the whole line"):
            JoinText.parse(whole[:end])
    words = base64.urlsafe_b64decode(whole.removeprefix(PREFIX) + "==").decode().split(" ")
    for at, word in ((0, "nowhere"), (0, "tcp://0.0.0.0:1"), (1, "ab"), (3, "-1"), (4, "x"), (5, "ab")):
        spoilt = " ".join([*words[:at], word, *words[at + 1 :]])
        with pytest.raises(AddressError, match="cannot be read"):
            JoinText.parse(PREFIX + base64.urlsafe_b64encode(spoilt.encode()).decode())


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        ([""], "not of the form"),
        (["head:65536"], "'head:65536' is not of the form HOST:PORT; give a host and a port"),
        (["head"], "not of the form"),
        (["head:0"], "names no port"),
        (["0.0.0.0:7000"], "stands for every address"),
        (["http://head:7000"], "not of the form"),
        ([], "0 addresses are given"),
        (["head:1"] * 17, "17 addresses are given"),
    ],
)
def test_addresses_that_lead_nowhere(addresses: list[str], said: str) -> None:
    with pytest.raises(AddressError, match=said):
        check_addresses(addresses)
    with pytest.raises(AddressError, match="there is no role 'king'; choose one of worker, gateway, predictor, node"):
        TEXTS.issue(["head:1"], "king", 1)


def test_keys_lie_in_a_folder_and_only_their_owner_reads_the_secret(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    made = make_keys(folder)
    assert read_keys(folder) == made
    assert stat.S_IMODE((folder / SECRET).stat().st_mode) == 0o600
    with pytest.raises(KeysError, match="has keys already"):
        make_keys(folder)
    assert read_keys(folder) == made, "nothing was changed"
    with pytest.raises(KeysError, match=r"cannot be written to .* name a folder to write to"):
        make_keys(folder / SECRET)
    with pytest.raises(KeysError, match=r"holds no keys to read .* run: blockwright keys new"):
        read_keys(tmp_path)
    (folder / SECRET).write_bytes(NodeKeys.generate().secret)
    with pytest.raises(KeysError, match="do not belong together"):
        read_keys(folder)


async def test_a_head_takes_the_role_from_the_text() -> None:
    hub = ClusterHead("head", launcher=InProcessLauncher(), keys=KEYS, join_texts=TEXTS)
    await hub.start()
    lasting = TEXTS.issue(["head:1"], "worker", 1 << 36)
    for number in (1, 2):  # as often as it is used
        assert hub.join(f"x{number}", f"{number}" * 64, lasting.ticket).own == PeerId(f"x{number}", 1)
        assert hub.members()[f"x{number}"].role == "worker"
    with pytest.raises(HandshakeRefused, match="has a node head already"):
        hub.join("head", "3" * 64, lasting.ticket)
    with pytest.raises(HandshakeRefused, match="expired"):
        hub.join("x3", "3" * 64, TEXT.ticket)
    assert "x3" not in hub.members()
    await hub.stop()

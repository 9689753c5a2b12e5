"""The parts of a node that know its peers, as one value for the parts that receive from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...transport.address import PeerId
from ...transport.clock import Clock
from ...transport.link_table import LinkTable
from .address_resolver import AddressResolver
from .peers import PeerTable
from .remote_calls import RemoteCalls
from .sender import PeerSender


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """A node's table of peers, their addresses, and the ways to send to them."""

    node: PeerId
    clock: Clock
    table: PeerTable
    resolver: AddressResolver
    sender: PeerSender
    remote: RemoteCalls
    tensor_links: LinkTable | None  # none where the node does not listen
    dropped: Counter[str]  # messages not let in, by cause

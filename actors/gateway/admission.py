"""Gateway admission: the actor that takes in gateways on other machines, which have joined the cluster by themselves.

A gateway brings its name and its release; it gets the settings of the server's own gateways, and over the same encrypted
connection the small files of its models (``front_files.py``): its machine needs no checkpoint. At the head an actor stands
for it. Owns no state.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.cluster.join_text import GATEWAY
from ..members import MembersNodes, check_joined, label_refusal, release_refusal, stand_in
from .front_files import ERRORS, PIECE, FolderListing, FrontFiles, refused
from .peers import GatewayConfig

GATEWAY_ADMISSION = "gateway-admission"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # a part of request ids, in which a dot has a meaning


@dataclass(frozen=True, slots=True)
class JoinedGatewayConfig:
    """The configuration of a gateway that joined. files: hashes of the files that its settings name, by setting."""

    gateway: GatewayConfig
    files: dict[str, str]


class GatewayAdmission(Actor):
    """The actor of gateway admission (see the module).

    nodes: the cluster. config: of one of the server's own gateways. taken: names that the cluster gives to its own nodes.
    """

    def __init__(self, nodes: MembersNodes, config: GatewayConfig, taken: Collection[str], files: FrontFiles) -> None:
        self._nodes = nodes
        self._config = config
        self._taken = taken
        self._files = files

    @endpoint(concurrent=True)
    async def enlist(self, name: str, incarnation: int, release: str, labels: dict[str, str]) -> JoinedGatewayConfig:
        """Take in a gateway that has joined, and return its configuration. Raises ValueError with a sentence."""
        check_joined(self._nodes, name, incarnation, GATEWAY)
        if why := release_refusal(release) or label_refusal(labels) or name_refusal(name):
            raise ValueError(why)
        try:
            files = await asyncio.to_thread(self._files.named)
        except ERRORS as error:
            raise ValueError(f"the head cannot read a file that its settings name ({refused(error)})") from None
        await stand_in(self.node, self._nodes, name, incarnation, self._taken)
        return JoinedGatewayConfig(self._config, files)

    @endpoint(concurrent=True)
    async def model_files(self, folders: list[str]) -> FolderListing:
        """Describe the files of a served model. Raises ValueError with a sentence."""
        try:
            return await asyncio.to_thread(self._files.of_model, folders)
        except ERRORS as error:
            raise ValueError(refused(error)) from None

    @endpoint
    async def content(self, folder: str, name: str) -> AsyncIterator[bytes]:
        """Yield a file in pieces (see ``FrontFiles.content``). Raises ValueError with a sentence."""
        try:
            raw = await asyncio.to_thread(self._files.content, folder, name)
        except ERRORS as error:
            raise ValueError(refused(error)) from None
        for first in range(0, len(raw), PIECE):
            yield raw[first : first + PIECE]


def name_refusal(name: str) -> str:
    """Return why a gateway may not have a name: a sentence, or empty."""
    if _NAME.fullmatch(name):
        return ""
    return f"the name {name} cannot be a gateway's, whose requests have it in their ids; give letters, digits, '-' and '_'"

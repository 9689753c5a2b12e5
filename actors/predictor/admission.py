"""Predictor admission: the head's actor that takes in processes of predictors on other machines, and says who predicts whom.

``policies/prediction/coverage.py`` decides; here are the members, their machines, and the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...policies.prediction.coverage import covered
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.errors import RuntimeFault
from ...runtime.cluster.join_text import PREDICTOR
from ...transport.address import split_key, tcp_parts
from ...transport.errors import AddressError
from ..members import MembersNodes, check_joined, label_refusal, release_refusal, stand_in
from ..settings.settings import Settings
from ..sizing import worker_names
from ..supervision_tree import dispatchers
from .messages import NODE, CoverageAccount

PREDICTOR_ADMISSION = "predictor-admission"
TELLING = 1.0  # timeout of a process's account


class PredictorAdmission(Actor):
    """See the module. nodes: the cluster. taken: names of the cluster's own nodes. controller: its address."""

    def __init__(self, nodes: MembersNodes, settings: Settings, taken: Collection[str], controller: str) -> None:
        self._nodes = nodes
        self._settings = settings
        self._taken = taken
        self._controller = controller
        self._own = dict.fromkeys(worker_names(settings), NODE)  # predicted where they always were
        self._workers: dict[str, str] = {}  # that joined -> machine
        self._processes: dict[str, str] = {NODE: ""}  # of predictors -> machine
        self._places: dict[str, str] = {}
        self._labels: dict[str, dict[str, str]] = {}  # by process

    @endpoint(concurrent=True)
    async def enlist(self, name: str, incarnation: int, release: str, labels: dict[str, str]) -> Settings:
        """Take in a process that has joined, and return the settings. Raises ValueError with a sentence."""
        check_joined(self._nodes, name, incarnation, PREDICTOR)
        if why := release_refusal(release) or label_refusal(labels):
            raise ValueError(why)
        await stand_in(self.node, self._nodes, name, incarnation, self._taken)
        self._labels[name] = labels
        return self._settings.changed(profile="")

    @endpoint(urgent=True)
    async def up(self, name: str, role: str) -> None:
        """Note a worker that joined, or a process of predictors, the server's own included."""
        table = self._processes if role == PREDICTOR else self._workers
        table[name] = self._machine(name)
        self._tell()

    @endpoint(urgent=True)
    async def back(self, roles: Mapping[str, str]) -> None:
        """Take over members of an earlier head, or of this one after it had lost them. roles: by name.

        Predictors stay where they are, as far as their processes tell where that is.
        """
        for name in [name for name, role in roles.items() if role == PREDICTOR]:
            try:
                told = await self.node.ref(f"{name}/coverage").tell(timeout=TELLING, returns=CoverageAccount)
            except RuntimeFault:  # it has ended, or has no predictors yet; ``down`` follows, or a process that starts anew
                told = CoverageAccount()
            if name != NODE:
                self._labels[name] = told.labels
            self._places = told.places | self._places
        for name, role in roles.items():
            table = self._processes if role == PREDICTOR else self._workers
            table[name] = self._machine(name)
        self._tell()

    @endpoint(urgent=True)
    async def down(self, name: str) -> None:
        """Forget one that has ended."""
        self._workers.pop(name, None)
        if name != NODE:  # which is restarted
            self._processes.pop(name, None)
            self._labels.pop(name, None)
        self._tell()

    @endpoint(urgent=True)
    async def view(self) -> list[dict[str, Any]]:
        """Return the processes of predictors, for people."""
        there, places = self.node.peers(), self._own | self._places
        return [
            {
                "id": name,
                "host": where,
                "labels": dict(self._labels.get(name, {})),
                "joined": name != NODE,
                "state": "ready" if name in there else "silent",
                "predicts": [worker for worker, process in places.items() if process == name],
            }
            for name, where in self._processes.items()
        ]

    def _machine(self, name: str) -> str:
        peer = self.node.peers().get(name)
        try:
            return tcp_parts(split_key(peer.endpoint)[0])[0] if peer is not None else ""
        except AddressError:  # a socket file: of the head's machine
            return ""

    def _tell(self) -> None:
        there = {name: where for name, where in self._processes.items() if name in self.node.peers()}
        self._places = self._own | covered(self._workers, there, self._places)
        for name in there:
            self.node.ref(f"{name}/coverage").cover.cast(self._places)
        names = [address.partition("/")[2] for address in dispatchers(self._settings.dispatching).values()]
        self.node.ref(self._controller).dispatchers.cast([f"{node}/{name}" for name in names for node in there])

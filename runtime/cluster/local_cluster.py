"""A cluster of processes on this machine, in one line of a script, a notebook or a test.

    async with LocalCluster(3) as cluster:
        ref = await cluster.node.spawn(Counter, name="counter", on="w1")
        await cluster.restart("w1")

Owns the list of wanted worker nodes, and their restarts: by hand, or by itself within limits (decided by
``policies/cluster/restart_policy.py``). Processes are a launcher's, membership is ``cluster.py``'s. Nothing outlives it:
leaving the block ends all, and when this process dies, whatever kills it, the forkserver ends and cleans up what is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from ...policies.cluster.restart_policy import Backoff, Plan, Restart, Restarts
from ...transport.clock import Clock, Timer
from ...transport.curve import NodeKeys
from ..base.down import Down
from ..base.errors import NodeDown
from ..base.names import import_name
from ..node.node import Node
from .cluster import ClusterHead
from .launcher import Launcher, LaunchError
from .processes import ForkserverLauncher

log = logging.getLogger("blockwright.runtime")
IDLE = "blockwright.runtime.cluster.node_process:idle"
INVITATION_FILE = "invitation.keys"  # named as what ``remove_directory`` removes


class LocalCluster:
    """See the module.

    nodes: how many (they are called w0, w1, ...), or their names. entry: ``async def f(node, config)`` at the top of a
    module, or its import name, which every node runs first; without it nodes are empty and actors are spawned on them.
    preload: modules that processes find imported, besides the entry's (imported only: none that starts threads).
    listen, keys, heartbeat, silence, startup: see ``ClusterHead``; over TCP, keys are made if none are given.
    restarts: how many automatic restarts within ``period`` seconds are allowed; one more and no node is restarted any
    more (``gave_up`` says why). None by default. launcher: the forkserver's by default.
    """

    def __init__(
        self,
        nodes: int | Sequence[str] = 2,
        *,
        entry: Callable[[Node, Any], Awaitable[None]] | str = IDLE,
        config: Any = None,
        preload: Sequence[str] = (),
        directory: Path | None = None,
        listen: str = "",
        keys: NodeKeys | None = None,
        heartbeat: float = 0.5,
        silence: float = 2.5,
        startup: float = 120.0,
        restarts: int = 0,
        period: float = 5.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - immutable
        launcher: Launcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(nodes, int) and nodes < 0:
            raise ValueError(f"a cluster of {nodes} nodes cannot be; give how many workers there are beside the head")
        if isinstance(nodes, str) or not isinstance(nodes, int | Sequence):
            raise TypeError(f"nodes={nodes!r} is neither a number nor a list of names; give 2, or ['w0', 'w1']")
        self.nodes = tuple(f"w{i}" for i in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"nodes {list(self.nodes)} are not named apart; give each a name of its own")
        self.gave_up, self._started = "", False
        self._entry, self._config = entry if isinstance(entry, str) else import_name(entry), config
        if launcher is None:
            launcher = ForkserverLauncher(directory, preload=[self._entry.partition(":")[0], *preload])
        self._launcher, self._automatic = launcher, restarts > 0
        self._keys = NodeKeys.generate() if keys is None and listen else keys
        self.hub = ClusterHead(
            "head",
            launcher=launcher,
            heartbeat=heartbeat,
            silence=silence,
            startup=startup,
            listen=listen,
            keys=self._keys,
            clock=clock,
        )
        order = [(name, Restart.PERMANENT) for name in self.nodes]
        self._rules = Restarts(order, intensity=restarts, period=period, backoff=backoff)
        self._by_hand: set[str] = set()  # what ends because it was asked for
        self._timer: Timer | None = None
        self._revivals: set[asyncio.Task[None]] = set()

    @property
    def node(self) -> Node:
        """The head: spawn actors from it, ask it for references and links."""
        return self.hub.node

    @property
    def invitation(self) -> str:
        """The command that joins by hand. Over TCP it names a file with a new invitation (``invite``), which is readable by
        this user alone and gone when the cluster is: so the secret is in no list of processes."""
        if self._keys is None or not self._launcher.directory:
            return f"blockwright node --join {self.node.endpoint}"
        path = Path(self._launcher.directory) / INVITATION_FILE
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.invite() + "\n")
        return f"blockwright node --join @{path}"

    def invite(self, lasting: float = 600.0) -> str:
        """Return a text with which one node can join (``node --join TEXT``), once, within ``lasting`` seconds
        (``ClusterHead``).
        """
        return self.hub.invite(lasting)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Once; returns when all nodes are up. Raises LaunchError, NodeDown with the cause of the first that ended; then
        nothing is left. RuntimeError when it was started before."""
        if self._started:
            raise RuntimeError("this cluster has been started before; make a new one")
        self._started = True
        await self.hub.start()
        try:
            self.hub.on_up(self._up)
            for name in self.nodes:
                await self.hub.launch(name, self._entry, self._config)
            for name in self.nodes:
                await self.hub.wait_up(name)
            self.hub.on_down(self._down)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop in order: nodes stop their actors and end; a node that does not is killed. Idempotent."""
        if not self._started:
            return
        if self._timer is not None:
            self._timer.cancel()
        for task in self._revivals:
            task.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)
        await self.hub.stop()

    async def restart(self, name: str) -> int:
        """End the node, if it lives, and start it anew; its incarnation when it is up. Raises NodeDown, LaunchError."""
        await self.kill(name)
        incarnation = await self.hub.launch(name, self._entry, self._config)
        await self.hub.wait_up(name)
        self._by_hand.discard(name)
        return incarnation

    async def remove(self, name: str) -> None:
        """End a member for good, one that joined by hand for instance: see ``ClusterHead.remove``. Raises KeyError."""
        if name not in (members := self.hub.members()):
            raise KeyError(f"there is no node {name!r}; there are {sorted(members)}")
        self._by_hand.add(name)
        await self.hub.remove(name)

    async def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone. It stays down until ``restart``. Raises KeyError: no such node."""
        if name not in (members := self.hub.members()):
            raise KeyError(f"there is no node {name!r}; there are {sorted(members)}")
        self._by_hand.add(name)
        await self.hub.kill(name)

    def _up(self, name: str, incarnation: int) -> None:
        if name in self.nodes:
            self._rules.up(name, self.node.clock.now())

    def _down(self, down: Down) -> None:
        if self._automatic and down.node in self.nodes and down.node not in self._by_hand:
            self._follow(self._rules.ended(down.node, True, self.node.clock.now(), random.random()))

    def _follow(self, plan: Plan) -> None:
        if plan.give_up and not self.gave_up:
            self.gave_up = plan.give_up
            log.error("nodes are no longer restarted: %s", plan.give_up)
        self._look()

    def _look(self) -> None:
        """Start what is due, and come back when the next one is."""
        now = self.node.clock.now()
        while not self.gave_up and (name := self._rules.next(now, self._possible)) is not None:
            self._rules.wait(name, float("inf"))  # until it is up, or down again
            task = asyncio.get_running_loop().create_task(self._revive(name))
            self._revivals.add(task)
            task.add_done_callback(self._revivals.discard)
        if self._timer is not None:
            self._timer.cancel()
        if (due := self._rules.due(now)) is not None and due != float("inf"):
            self._timer = self.node.clock.call_at(due, self._look)

    def _possible(self, name: str) -> bool:
        return name not in self._by_hand

    async def _revive(self, name: str) -> None:
        try:
            await self.hub.members()[name].exited.wait()
            await self.hub.launch(name, self._entry, self._config)
            await self.hub.wait_up(name)
        except NodeDown:
            pass  # ``_down`` was called, too
        except LaunchError as error:
            log.error("node %s was not restarted: %s", name, error)
            self._follow(self._rules.failed(name, self.node.clock.now(), random.random()))

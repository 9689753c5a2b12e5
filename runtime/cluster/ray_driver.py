"""The process between the head and Ray: it starts a named actor for each worker, and says what becomes of it.

    orders, as lines of JSON     {"do": "spawn", "actor", "text", "needs"}, {"do": "kill", "actor"}, {"do": "tell"}
    answers                      {"event": "started", "actor", "pid"}, {"event": "ended", "actor", "status", "words"},
                                 {"event": "actors", "actors": {ACTOR: PID, or 0 before it has started}},
                                 {"event": "refused", "why"}: there is no Ray cluster

Each worker has a placement group of one bundle, placed on the node with the fewest workers if there is room, and in it an
actor with ``max_restarts=0``: the head decides about restarts. The actor runs ``blockwright worker --join -`` as a child
that dies with it (PR_SET_PDEATHSIG), and hands the join text over on its standard input. Actors and groups are Ray's to end
with this process, which ends with its standard input; heads come and go at that. Owns no decision about workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PLACED = 30.0  # seconds in which Ray has to find room
LONGEST_WORDS = 300  # characters
LINE = 1 << 20
LOOK = 0.5  # seconds between two looks at Ray's node
KILLED = -9
# The child sets its death signal, unless its parent is gone already, and becomes the worker.
PRELUDE = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]):\n    sys.exit(1)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'blockwright', 'worker', '--join', '-', *sys.argv[2:]])\n"
)


class RayWorker:
    """The actor of one worker: it runs the worker's process, and ends with it or takes it along.

    One thread starts the process and stays for its whole life, since the death signal comes when the starting thread ends.
    """

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._child: subprocess.Popen[str] | None = None
        self._end = KILLED, "its process could not be started"

    def begin(self, text: str, labels: Mapping[str, str]) -> tuple[int, str]:
        """Start the worker's process; its id, and the id of this node."""
        import ray

        self._words = [word for label in labels.items() for word in ("--label", "=".join(label))]
        self._text = text
        self._thread.start()
        self._begun.wait()
        threading.Thread(target=self._end_with, args=(os.getppid(),), daemon=True).start()
        return (self._child.pid if self._child is not None else 0), ray.get_runtime_context().get_node_id()

    def follow(self) -> tuple[int, str]:
        """Wait for the end of the worker's process: its status, and its last line."""
        self._thread.join()
        return self._end

    def _end_with(self, node: int) -> None:
        """End the worker's process once Ray's node is gone, which started this one: Ray lets a call run on."""
        while os.getppid() == node:
            time.sleep(LOOK)
        if self._child is not None:
            self._child.kill()

    def _run(self) -> None:
        command = [sys.executable, "-c", PRELUDE, str(os.getpid()), *self._words]
        pipe = subprocess.PIPE
        try:
            child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace")
            self._child = child
        finally:
            self._begun.set()
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "so is this"
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            child.stdin.write(f"{self._text}\n")
            child.stdin.flush()
        words = ""
        for line in child.stdout:
            words = line.strip()[:LONGEST_WORDS] or words
            print(line, end="", flush=True)  # Ray keeps it
        self._end = child.wait(), words


@dataclass(slots=True)
class _RayPlace:
    """An actor, its placement group, and the node on which it is."""

    group: Any
    actor: Any = None
    node: str = ""
    pid: int = 0  # of the worker, once it has started


class Driver:
    """See the module. ``say`` sends an answer to the head."""

    def __init__(self, ray: Any, say: Callable[..., None]) -> None:
        self._ray = ray
        self._say = say
        self._places: dict[str, _RayPlace] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, orders: asyncio.StreamReader) -> None:
        """Carry out orders until there are no more."""
        async for line in orders:
            order = json.loads(line)
            if order["do"] == "spawn":
                task = asyncio.get_running_loop().create_task(self._live(order["actor"], order["text"], order["needs"]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif order["do"] == "tell":
                self._say(event="actors", actors={name: place.pid for name, place in self._places.items()})
            else:
                self._end(order["actor"])
        for actor in [*self._places]:
            self._end(actor)

    async def _live(self, name: str, text: str, needs: Mapping[str, Any]) -> None:
        """Start a worker, say so, wait for its end and say that."""
        status, words = KILLED, ""
        try:
            place = await self._place(name, needs)
            place.pid, place.node = await place.actor.begin.remote(text, needs["labels"])
            self._say(event="started", actor=name, pid=place.pid)
            status, words = await place.actor.follow.remote()
        except _NoRoom as refused:
            words = str(refused)
        except self._ray.exceptions.RayError as error:
            words = f"its Ray actor ended: {str(error).strip().splitlines()[0]}"[:LONGEST_WORDS]
        finally:
            self._end(name)
        self._say(event="ended", actor=name, status=status, words=words)

    async def _place(self, name: str, needs: Mapping[str, Any]) -> _RayPlace:
        """Return an actor in a placement group of its own. Raises _NoRoom."""
        ray, wanted = self._ray, resources(needs)
        selector = [dict(needs["labels"])] if needs["labels"] else None
        target = self._target()
        group = ray.util.placement_group(
            [wanted], strategy="STRICT_PACK", name=name, bundle_label_selector=selector, _soft_target_node_id=target
        )
        self._places[name] = place = _RayPlace(group, node=target or "")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(group.ready(), PLACED)
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            place.actor = (
                ray.remote(RayWorker)
                .options(
                    name=name, max_restarts=0, max_task_retries=0, max_concurrency=2, scheduling_strategy=strategy,
                    num_cpus=wanted["CPU"], num_gpus=wanted.get("GPU", 0), memory=wanted.get("memory") or None,
                )
                .remote()
            )  # fmt: skip
            return place
        free = {kind: amount for kind, amount in ray.available_resources().items() if kind in ("CPU", "GPU", "memory")}
        labels = f" with the labels {dict(needs['labels'])}" if needs["labels"] else ""
        raise _NoRoom(
            f"no node of the Ray cluster{labels} had {shown(wanted)} free within {PLACED:g} s; all together have "
            f"{shown(free)} free; ask for less (launch_cores, launch_memory, launch_devices), or add nodes"
        )

    def _target(self) -> str | None:
        """Return the living node with the fewest workers, in Ray's order."""
        taken = Counter(place.node for place in self._places.values())
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        return min(nodes, key=lambda node: taken[node], default=None)

    def _end(self, name: str) -> None:
        """End an actor, with its child, and give its place back. Ended already: nothing."""
        if (place := self._places.pop(name, None)) is None:
            return
        with contextlib.suppress(Exception):  # Ray is gone, and all of it
            if place.actor is not None:
                self._ray.kill(place.actor)
            self._ray.util.remove_placement_group(place.group)


class _NoRoom(Exception):
    """Ray has no place for a worker; one sentence."""


def resources(needs: Mapping[str, Any]) -> dict[str, float]:
    """Return what a worker asks of Ray: at least one core, so that a placement group is never empty."""
    wanted = {"CPU": float(needs["cores"] or 1), "memory": float(needs["bytes"]), "GPU": float(needs["devices"])}
    return {kind: amount for kind, amount in wanted.items() if amount}


def shown(amounts: Mapping[str, float]) -> str:
    """Return resources for people."""
    return ", ".join(f"{kind} {amount:g}" for kind, amount in sorted(amounts.items())) or "nothing"


async def _serve(ray: Any, say: Callable[..., None]) -> None:
    orders = asyncio.StreamReader(LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await Driver(ray, say).run(orders)


def main() -> None:
    """Connect to the Ray cluster whose address is the only argument, and serve the head."""
    answers = os.fdopen(os.dup(1), "w")  # what Ray prints goes to standard error instead
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    import ray

    address, namespace = sys.argv[1] or "auto", f"blockwright-{secrets.token_hex(6)}"
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # many classes, of Ray's parts
        where = "on this machine" if address == "auto" else f"at {address}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST_WORDS]
        remedy = "start one with 'ray start --head', or name it in ray_address"
        say(event="refused", why=f"no Ray cluster can be used {where} ({reason}); {remedy}")
        return
    try:
        asyncio.run(_serve(ray, say))
    finally:
        ray.shutdown()

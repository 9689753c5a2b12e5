"""A served cluster in processes of its own, as a person starts it: ``python -m blockwright serve`` and a port.

Owns one such server and proof of what it leaves behind: every process of it carries a mark in its environment, its sockets
lie in a directory of its own, and shared memory is listed before and after. Waits for conditions, never for fixed times.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockwright.tests.cap import SERVED
from blockwright.tests.system.event_logs import EventLogs
from blockwright.tests.system.faulty_worker import LEVERS
from blockwright.tests.waiting import PATIENCE, until_now

MARK = "BLOCKWRIGHT_SYSTEM_TEST"
# What a busy machine must not bring about where a test does not mean it.
CALM = {"silence": PATIENCE, "stall_timeout": PATIENCE, "worker_wait": PATIENCE, "drain_timeout": PATIENCE}
ANYWHERE = {"gateway_in_head": "yes"}  # the same processes on any number of cores; where it is ``no``, a test says so


class Program:
    """A process that starts a cluster, and what it leaves behind. ``arguments`` follow the interpreter ``python``;
    ``address_space`` in bytes is the limit of each process (``ulimit -v``)."""

    def __init__(
        self, arguments: Sequence[str], levers: Sequence[str] = (), address_space: int = 0, python: str = sys.executable
    ) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        self._home = Path(tempfile.mkdtemp(prefix="bws-"))
        self.directory = self._home / "sockets"
        self.directory.mkdir()
        self._memory_before = shared_memory()
        name, _, mark = self._mark.partition("=")
        for lever in levers:
            self.lever(lever).touch()
        own = {name: mark, LEVERS: str(self._home), "TMPDIR": str(self.directory), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **own}
        with open(self._home / "out", "wb") as out, open(self._home / "err", "wb") as err:
            self._environment = environment
            command = [python, *arguments]
            if address_space:
                command = ["sh", "-c", f'ulimit -v {address_space >> 10}; exec "$@"', "sh", *command]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=self._home)

    @property
    def out(self) -> str:
        return (self._home / "out").read_text()

    @property
    def err(self) -> str:
        return (self._home / "err").read_text()

    def beside(self, name: str, *arguments: str, python: str = sys.executable) -> subprocess.Popen[bytes]:
        """One more process of the same cluster. What it prints is added to ``said(name)``."""
        with open(self._home / name, "ab") as out:
            command, own = [python, *arguments], self._environment
            return subprocess.Popen(command, stdout=out, stderr=out, env=own, cwd=self._home)

    def said(self, name: str) -> str:
        return (self._home / name).read_text()

    def lever(self, name: str) -> Path:
        """A file that ``faulty_worker`` looks at."""
        return self._home / name

    def processes(self) -> dict[int, str]:
        """pid -> command line of every living process that this server started, the head included."""
        found, mark = {}, self._mark.encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue  # it has just ended
        return found

    def gone(self) -> None:
        """No process, no socket, no directory and no shared memory of it is left, or will be in a moment."""
        until_now(lambda: not self.processes(), f"end of the processes {self.processes()}")
        left = lambda: [str(path) for path in self.directory.rglob("*")]  # noqa: E731
        until_now(lambda: not left(), f"end of {left()}")
        until_now(lambda: not (shared_memory() - self._memory_before - used_memory()), "end of the shared memory")

    def destroy(self) -> None:
        """After a failure: nothing of it may disturb what comes next."""
        for pid in [self.process.pid, *self.processes()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


class Server(Program):
    """See the module. ``settings`` are given with ``--set``; ``module`` is run with ``-m`` instead of blockwright itself."""

    def __init__(
        self,
        model: Path,
        *,
        workers: int = 2,
        module: str = "blockwright",
        levers: Sequence[str] = (),
        address_space: int = 0,
        arguments: Sequence[str] = (),
        python: str = sys.executable,
        **settings: Any,
    ) -> None:
        self.event_logs = EventLogs()
        own = {"memory": "32MiB", "threads": 1, "check": "true", "event_log": self.event_logs.folder}
        values = {**own, **ANYWHERE, **CALM, **SERVED, **settings}
        command = ["-m", module, "serve", str(model), "--port", "0", "--workers", str(workers), *arguments]
        command += [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        super().__init__(command, levers, address_space, python)
        self.path = model
        self.url = ""
        self._fronts = int(values.get("gateways", 1))

    def listening(self) -> str:
        """The address, once the server has said it."""
        if not self.url:
            until_now(lambda: "listening on" in self.out or self.process.poll() is not None, "listening")
            match = re.search(r"http://\S+", self.out)
            assert match, self.err
            self.url = match[0]
        return self.url

    def whole(self) -> Server:
        """Wait until all workers serve; destroyed where that fails."""
        try:
            self.listening()
            until_now(lambda: " ready at " in self.out or self.process.poll() is not None, "ready")
            assert self.process.poll() is None, self.err
            until_now(self._whole, "all workers ready and all gateways up")
        except BaseException:
            print(self.out, self.err)
            self.destroy()
            raise
        return self

    def _whole(self) -> bool:
        with urllib.request.urlopen(self.url + "/admin/cluster", timeout=PATIENCE) as answer:
            view = json.load(answer)
        ready = all(worker["state"] == "ready" for worker in view["workers"])
        return ready and len(view["gateways"]) >= self._fronts

    def status(self, path: str) -> int:
        """Of a GET without a loop; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def head(self) -> int:
        """Its pid; 0 while there is none."""
        return next((pid for pid, command in self.processes().items() if command.startswith("blockwright: head")), 0)

    def forkserver(self) -> int:
        """Its pid: the child of the keeper."""
        command = ["pgrep", "-P", str(self.process.pid)]
        (pid,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return int(pid)

    def stop(self, code: int | None = 0, *, check_logs: bool = True) -> None:
        """SIGTERM; then nothing may be left. Also in order after the server was stopped or killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            ended = self.process.wait(timeout=PATIENCE)
            self.gone()
            assert code is None or ended == code, f"exit code {ended}\n{self.err}"
            assert "Traceback" not in self.err, self.err
        finally:
            self.destroy()
        if check_logs:
            self.event_logs.finish()


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def used_memory() -> set[str]:
    """What processes that live have mapped: where no process of a server is left, that of other programs."""
    found: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*/maps"):
        try:
            found.update(re.findall(r"/dev/shm/(\S+)", entry.read_text()))
        except OSError:
            continue  # it has just ended, or is not ours to look at
    return found

"""Hosts in tests: network namespaces of this machine, joined by a switch (``switch.py``) that delays, loses and cuts.

Owns the switch's process. Works as root; an unprivileged user runs these tests in a user namespace (``conftest.py``).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockwright.tests.hosts.switch import CLONE_NEWNET, NETWORK

_libc = ctypes.CDLL(None, use_errno=True)


class HostsRefused(Exception):
    """This machine lets us make no network namespaces; the text says why."""


class Hosts:
    """Hosts of these names. ``close`` ends them; processes that run there keep only their own loopback."""

    def __init__(self, *names: str, seed: int = 0) -> None:
        self._names = names
        words = [sys.executable, str(Path(__file__).with_name("switch.py")), str(seed), *names]
        self._switch = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._switch.stdout is not None
        if not (line := self._switch.stdout.readline()):
            errors = self._switch.communicate()[1].strip().splitlines()
            raise HostsRefused(errors[-1] if errors else f"the switch ended with {self._switch.returncode}")
        self._namespaces: dict[str, int] = json.loads(line)["namespaces"]

    def address(self, name: str) -> str:
        return f"{NETWORK}{self._names.index(name) + 1}"

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Let this thread open sockets and start processes at that host; at its own again afterwards."""
        before = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self._switch.pid}/fd/{self._namespaces[name]}", os.O_RDONLY)
        try:
            _enter(there)
            yield
        finally:
            _enter(before)
            os.close(there)
            os.close(before)

    def shape(self, *, delay: float = 0.0, loss: float = 0.0, rate: float = 0.0) -> None:
        """Set seconds of delay, the share of frames that are lost, and bytes a second (0: any) of all ways."""
        for one, other in itertools.permutations(self._names, 2):
            self._change(one, other, delay=delay, loss=loss, rate=rate)

    def cut(self, one: str, *others: str, way: str = "both") -> float:
        """Cut a host from others; return when the first way was cut, by the machine's clock.

        way: "both", "from" it or "to" it.
        """
        return self._turn(one, others, way, cut=True)

    def heal(self, one: str, *others: str) -> None:
        self._turn(one, others, "both", cut=False)

    def close(self) -> None:
        self._switch.communicate()

    def _turn(self, one: str, others: tuple[str, ...], way: str, *, cut: bool) -> float:
        turned = []
        for other in others:
            if way in ("both", "from"):
                turned.append(self._change(one, other, cut=cut))
            if way in ("both", "to"):
                turned.append(self._change(other, one, cut=cut))
        return turned[0]

    def _change(self, sender: str, to: str, **way: Any) -> float:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(json.dumps({"from": sender, "to": to, "way": way}) + "\n")
        self._switch.stdin.flush()
        return float(self._switch.stdout.readline())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")

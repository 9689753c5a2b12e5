"""Launching by a command: the words of its template, and the host that the next worker goes to.

A template is a line such as ``ssh {host} blockwright worker --join -``. It is cut into words as a shell would, and then
filled; no shell ever reads it, so a value cannot become another word. Among hosts the one with the fewest workers is next;
among those the one at which a command failed longest ago, so that a host that is down does not hold a worker up. A command
has failed if it soon ended in an error; one that ran for a while says nothing of its host. Starts nothing; time comes in as
an argument. Owns the counts of one launcher.
"""

from __future__ import annotations

import shlex
import string
from collections import Counter
from collections.abc import Mapping, Sequence

HOST = "host"
PLACEHOLDERS = (HOST, "name", "cores", "bytes", "devices")
CANNOT_RUN = "cannot be run"  # what a launcher says of a program that no later start would find
HOPELESS = 8  # such starts in a row of a worker, with doubled pauses some 12 seconds, after which it is started no more
SOON = 30.0  # seconds; ssh and a start take less
EXAMPLE = "ssh {host} blockwright worker --join -"


class TemplateError(ValueError):
    """A template that cannot be used: the second half of a sentence, with the remedy."""


class LaunchTemplate:
    """A template, cut into words. Raises TemplateError."""

    def __init__(self, line: str) -> None:
        try:
            self._words = shlex.split(line)
        except ValueError as error:
            raise TemplateError(f"cannot be cut into words ({error}); close each quote, as for a shell") from None
        if not self._words:
            raise TemplateError(f"is empty; give a command such as '{EXAMPLE}'")
        self.placeholders = frozenset(name for word in self._words for name in _placeholders(word))

    @property
    def program(self) -> str:
        """The program, as the template names it; empty if that depends on the worker."""
        return "" if _placeholders(self._words[0]) else self._words[0].format_map({})

    def check_hosts(self, hosts: Sequence[str]) -> None:
        """Raise TemplateError unless the template has a place for a host just where there are hosts."""
        if hosts and HOST not in self.placeholders:
            raise TemplateError(
                f"has no {{host}}, but there are hosts ({', '.join(hosts)}); put {{host}} where their names go, or name none"
            )
        if not hosts and HOST in self.placeholders:
            raise TemplateError("has {host}, but there are no hosts; name them in launch_hosts")

    def fill(self, values: Mapping[str, object]) -> list[str]:
        """Return the words of the command. ``values``: of all placeholders."""
        return [word.format_map(values) for word in self._words]


def cannot_run(cause: str) -> bool:
    """Return whether a worker has no process because its program cannot be run. cause: of the end of that life."""
    return cause.startswith("not started: ") and CANNOT_RUN in cause


def _placeholders(word: str) -> list[str]:
    """Return the names of the placeholders of a word. Raises TemplateError."""
    remedy = "write {{ and }} for braces that stay"
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError:
        raise TemplateError(f"has a brace without its other in {word!r}; {remedy}") from None
    found = [(name, form, change) for _, name, form, change in parts if name is not None]
    for name, form, change in found:
        if name not in PLACEHOLDERS or form or change:
            shown = word if form or change else f"{{{name}}}"
            there = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
            raise TemplateError(f"has the placeholder {shown}, which there is not; there are {there}; {remedy}")
    return [name for name, _, _ in found]


class HostChoice:
    """The hosts of one launcher (see the module)."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._workers: Counter[str] = Counter()  # that run on a host, or are being started
        self._failed: dict[str, int] = {}  # host -> number of the last failure there
        self._failures = 0

    def choose(self) -> str:
        """Return the host of the next worker, which counts from now on; "" where there are none."""
        if not self._hosts:
            return ""
        host = min(self._hosts, key=lambda one: (self._workers[one], self._failed.get(one, 0)))
        self._workers[host] += 1
        return host

    def take(self, host: str) -> str:
        """Count a worker that an earlier launcher has started on a host; return the host."""
        if host:
            self._workers[host] += 1
        return host

    def give_back(self, host: str, status: int, lived: float) -> None:
        """Note that the command of a worker of a host ended with this status, ``lived`` seconds after it was started."""
        if not host:
            return
        self._workers[host] -= 1
        if status and lived < SOON:
            self._failures += 1
            self._failed[host] = self._failures

"""The commands of ``blockwright``: one module each, found by name in ``COMMANDS``.

A module has ``add(parser)``, which declares its arguments, and ``run(arguments)``, which returns the exit code. Only the
module of the requested command is imported; ``--help`` reads the summaries here and imports none. A user's mistake is raised
as ``CommandError``. Modules import nothing heavy at their top, so that ``--help`` of a command is quick.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast


class CommandError(Exception):
    """The error that ends a command, in one sentence for people. ``code``: 2 for a wrong call, 1 for a run-time failure."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class CommandModule(Protocol):
    """The interface of a module in this package. Its docstring is the command's description in ``--help``."""

    __doc__: str | None

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code. Raise CommandError."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command. ``summary``: its line in the list of commands."""

    module: str  # name of a module in this package, or "module:Class" of a class with the same interface
    summary: str

    def load(self) -> CommandModule:
        name, _, part = self.module.partition(":")
        module = import_module(f"{__name__}.{name}")
        return cast(CommandModule, getattr(module, part) if part else module)


# The order is the order of the list in --help.
COMMANDS = {
    "serve": Command("serve", "serve checkpoints over HTTP"),
    "demo": Command("demo", "show it at work: shared fine-tunes, a dozen streams, a kill"),
    "chat": Command("chat", "talk to a model"),
    "complete": Command("complete", "continue a prompt"),
    "batch plan": Command("batch_plan", "look at a file of requests before it runs"),
    "batch run": Command("batch_run", "answer a file of requests without a server"),
    "bench": Command("bench", "measure a server"),
    "profile": Command("profile", "measure how fast this machine runs a model"),
    "ps": Command("ps", "show applications, memory and workers"),
    "apps": Command("apps", "list the applications of a server"),
    "apps add": Command("apps_add", "add a model to a running server"),
    "apps remove": Command("apps_remove", "remove a model from a server"),
    "top": Command("top", "show how busy a server is"),
    "explain": Command("explain", "show what happened to a request"),
    "chaos": Command("chaos", "kill, stop or slow a worker of your own server"),
    "doctor": Command("doctor", "check whether this machine can serve"),
    "family plan": Command("family:Plan", "measure which tiers are as fast as smaller models"),
    "family export": Command("family:Export", "write a tier of a family as a checkpoint"),
    "zoo add": Command("zoo_add", "add a model to a zoo, which stores each tensor once"),
    "zoo list": Command("zoo_list", "list the applications of a zoo"),
    "zoo show": Command("zoo_show", "show an application's blocks and who shares them"),
    "zoo verify": Command("zoo_verify", "check every byte of a zoo"),
    "zoo remove": Command("zoo_remove", "remove an application from a zoo"),
    "zoo gc": Command("zoo_gc", "delete the files of a zoo that nothing needs"),
    "simulate": Command("simulate", "simulate a cluster: latency and throughput of a workload"),
    "tagger train": Command("tagger_train", "train an estimator of answer lengths on past requests"),
    "tagger show": Command("tagger_show", "show how good a trained estimator is"),
    "node": Command("node", "join a cluster as one more node"),
    "trace": Command("trace", "draw logs of actors' messages as trees"),
    "trace replay": Command("replay", "replay the event log of a worker"),
    "version": Command("version", "print the version"),
}

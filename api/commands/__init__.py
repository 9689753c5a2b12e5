"""The commands of ``blockwright``: two functions each, found by name in ``COMMANDS``.

The function ``zoo_add`` runs ``blockwright zoo add`` and returns the exit code; its docstring is the description in
``--help``. ``zoo_add_arguments`` declares its arguments. Only the module of the requested command is imported; the list of
commands is made from the summaries here and imports none. A user's mistake is raised as ``CommandError``. Modules import
nothing heavy at their top, so that ``--help`` of a command is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple


class CommandError(Exception):
    """The error that ends a command, in one sentence for people. ``code``: 2 for a wrong call, 1 for a run-time failure."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def command_errors(*errors: type[Exception], code: int = 2) -> Iterator[None]:
    """Turn these errors, whose text is a sentence for people, into the end of the command."""
    try:
        yield
    except errors as error:
        raise CommandError(str(error), code) from None


class CommandFunctions(NamedTuple):
    """The functions of a command.

    ``declare`` adds its arguments to a parser. ``run`` returns the exit code, and raises CommandError; its docstring is the
    description in ``--help``.
    """

    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """A command. ``summary``: its line in the list of commands."""

    module: str  # name of a module in this package
    function: str  # name of the function that runs it
    summary: str

    def load(self) -> CommandFunctions:
        module = import_module(f"{__name__}.{self.module}")
        return CommandFunctions(getattr(module, f"{self.function}_arguments"), getattr(module, self.function))


# The order is the order of the list in --help.
COMMANDS = {
    "serve": Command("serve", "serve", "serve checkpoints over HTTP"),
    "demo": Command("demo", "demo", "show it at work: shared fine-tunes, a dozen streams, a kill"),
    "chat": Command("chat", "chat", "talk to a model"),
    "complete": Command("chat", "complete", "continue a prompt"),
    "batch plan": Command("batch_plan", "batch_plan", "look at a file of requests before it runs"),
    "batch run": Command("batch_run", "batch_run", "answer a file of requests without a server"),
    "bench": Command("bench", "bench", "measure a server"),
    "profile": Command("profile", "profile", "measure how fast this machine runs a model"),
    "ps": Command("ps", "ps", "show applications, memory and workers"),
    "apps": Command("apps", "apps", "list the applications of a server"),
    "apps add": Command("apps", "apps_add", "add a model to a running server"),
    "apps remove": Command("apps", "apps_remove", "remove a model from a server"),
    "top": Command("ps", "top", "show how busy a server is"),
    "explain": Command("explain", "explain", "show what happened to a request"),
    "chaos": Command("chaos", "chaos", "kill, stop or slow a worker of your own server"),
    "doctor": Command("doctor", "doctor", "check whether this machine can serve"),
    "family plan": Command("family", "family_plan", "measure which tiers are as fast as smaller models"),
    "family train": Command("family_train", "family_train", "train the lower tiers of a family"),
    "family report": Command("family_train", "family_report", "examine the tiers of a family, and choose theta for auto"),
    "family export": Command("family", "family_export", "write a tier of a family as a checkpoint"),
    "zoo add": Command("zoo", "zoo_add", "add a model to a zoo, which stores each tensor once"),
    "zoo list": Command("zoo", "zoo_list", "list the applications of a zoo"),
    "zoo show": Command("zoo", "zoo_show", "show an application's blocks and who shares them"),
    "zoo equivalence": Command(
        "zoo_equivalence", "zoo_equivalence", "find blocks of two applications that may answer for each other"
    ),
    "zoo surrogate": Command("zoo_surrogate", "zoo_surrogate", "make a smaller block that may draft in place of a block"),
    "zoo stitch": Command("zoo_stitch", "zoo_stitch", "join two applications of different widths by stitches"),
    "zoo verify": Command("zoo", "zoo_verify", "check every byte of a zoo"),
    "zoo remove": Command("zoo", "zoo_remove", "remove an application from a zoo"),
    "zoo gc": Command("zoo", "zoo_gc", "delete the files of a zoo that nothing needs"),
    "zoo serve": Command("zoo_serve", "zoo_serve", "give a zoo's files to workers on other machines"),
    "simulate": Command("simulate", "simulate", "simulate a cluster: latency and throughput of a workload"),
    "tagger train": Command("tagger", "tagger_train", "train an estimator of answer lengths on past requests"),
    "tagger show": Command("tagger", "tagger_show", "show how good a trained estimator is"),
    "keys new": Command("keys", "keys_new", "make the keys of a head that other machines may join"),
    "keys join": Command("keys", "keys_join", "print the text with which workers and gateways join"),
    "worker": Command("worker", "worker", "join a server as one more worker"),
    "gateway": Command("gateway", "gateway", "join a server as one more gateway"),
    "predictor": Command("predictor", "predictor", "join a server with more predictors and dispatchers"),
    "node": Command("node", "node", "join a cluster as one more node"),
    "upgrade head": Command("upgrade", "upgrade_head", "replace the head by one of the installed release"),
    "upgrade status": Command("upgrade", "upgrade_status", "show what is left to roll to the newest release"),
    "trace": Command("trace", "trace", "draw logs of actors' messages as trees"),
    "trace replay": Command("trace", "trace_replay", "replay the event log of a worker or the controller"),
    "version": Command("doctor", "version", "print the version"),
}

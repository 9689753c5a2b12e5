"""The command ``worker``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import CommandError, command_errors

if TYPE_CHECKING:
    from ...actors.worker.starting import Starting

TEXT = "a join text: @FILE, - for standard input, or the text itself"


def worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="WHERE", help=TEXT)
    parser.add_argument("--name", default="", help="name of this worker, unique in the cluster (host name and process id)")
    parser.add_argument("--memory", default="", metavar="SIZE", help="bytes for parameters and KV, such as 8GiB (its share)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="kernel threads (the cores of this machine)")
    parser.add_argument("--device", default="", help="where models run, as for serve (what the head's workers use)")
    parser.add_argument(
        "--model-folders", default="", metavar="FOLDERS", help="where this machine has the models, separated by commas"
    )
    parser.add_argument(
        "--store", default="", metavar="DIR", help="folder that keeps what comes from elsewhere (what the server says)"
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="a label to show, such as zone=a; may be repeated"
    )
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="tcp://HOST:PORT where others reach this worker")


def worker(arguments: argparse.Namespace) -> int:
    """Join a server on another machine as one more worker, and serve its models
    until you stop it.

    You need a join text (blockwright keys join, or the server's --join-file), this
    release. Models are looked for by their content in the folder where the server
    has them and in --model-folders. What is not there comes by its hash from other
    workers, or from the server's origin (setting origin), and is kept in --store.
    Everything else the server tells, and what this machine has is measured.

    SIGTERM or Ctrl-C drains the worker: its requests move to others, then it ends
    with code 0. The second one ends it at once. If the server ends it, or is gone,
    the code is 1. The server does not restart it: let a service manager do that.
    """
    from ...actors.settings.errors import SettingsError
    from ...transport.errors import TransportError

    with command_errors(SettingsError, TransportError):
        given = starting(arguments)
    from ...gpu import eager_torch as eager_torch  # before anything else imports torch
    from ...actors.worker.joined import serve  # isort: skip

    return run_member(lambda: serve(given, say))


def run_member(serve: Callable[[], Coroutine[Any, Any, bool]]) -> int:
    """Run a member of a server on another machine; return the exit code: 0 if a signal asked for the end, else 1.

    After 1 it is to be started again; what would fail again ends it with 2.
    """
    from ...actors.member_calls import HeadLost, JoinRefused
    from ...actors.settings.errors import SettingsError
    from ...runtime.base.ending import GRACE, end_within
    from ...runtime.base.loop import run as run_loop
    from ...transport.errors import TransportError

    async def live() -> int:
        with command_errors(JoinRefused, SettingsError, TransportError), command_errors(HeadLost, code=1):
            asked = await serve()
        code = 0 if asked else 1
        end_within(GRACE, code)
        return code

    return run_loop(live())


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def starting(arguments: argparse.Namespace) -> Starting:
    """Return what the arguments say. Raises AddressError, SettingsError."""
    from ...actors.members import WorkerWish
    from ...actors.settings.errors import SettingsError
    from ...actors.settings.workers import DEVICE, MOST_THREADS
    from ...actors.worker.starting import Starting
    from ...policies.binary_size import binary_size, parse_size
    from ...policies.cluster.worker_size import LEAST
    from ...runtime.cluster.join_text import WORKER

    check_listen(arguments.listen)
    text = given_text(arguments.join, WORKER)
    memory = parse_size(arguments.memory) if arguments.memory else 0
    if memory is None or (arguments.memory and memory <= 0):
        raise SettingsError(f"--memory is {arguments.memory!r}; give bytes, or a size such as 8GiB")
    if arguments.memory and memory < LEAST:
        raise SettingsError(f"--memory is {arguments.memory!r}, which holds no model; give at least {binary_size(LEAST)}")
    if not 0 <= arguments.threads <= MOST_THREADS:
        raise SettingsError(f"--threads is {arguments.threads}; give at most {MOST_THREADS}, or 0 for the cores there are")
    if arguments.device and not DEVICE.fullmatch(arguments.device):
        raise SettingsError(f"--device is {arguments.device!r}; choose cpu, cuda, cuda:1 (a card by its number) or auto")
    for folder in filter(None, map(str.strip, arguments.model_folders.split(","))):
        if not Path(folder).expanduser().is_dir():
            raise SettingsError(f"--model-folders names {folder!r}, which is no folder here; name folders that are there")
    wish = WorkerWish(memory, arguments.threads, arguments.device, arguments.model_folders, made_store(arguments.store))
    from_input = arguments.join == "-"
    return Starting(text, arguments.name, arguments.listen, wish, labels_of(arguments.label), from_input)


def given_text(where: str, role: str) -> str:
    """Return the join text of ``--join``, which must admit this role. Raises AddressError."""
    from ...runtime.cluster.invitations import given
    from ...runtime.cluster.join_text import JoinText
    from ..settings.secret_files import open_to_all

    if where.startswith("@") and (warning := open_to_all(Path(where[1:]), "a join text")):
        print(f"warning: {warning}", file=sys.stderr)
    text = given(where, role)
    JoinText.parse(text).check_role(role)
    return text


def made_store(text: str) -> str:
    """Return the folder of ``--store``, which is a store now, or none. Raises SettingsError."""
    from ...actors.settings.errors import SettingsError
    from ...zoo.errors import ZooError
    from ...zoo.store import Store

    try:
        path = str(Path(text).expanduser().absolute()) if text else ""
        if path:
            Store.open(path, field="--store")
    except (ZooError, RuntimeError) as error:  # RuntimeError: "~" of an unknown user
        raise SettingsError(str(error)) from None
    return path


def check_listen(listen: str) -> None:
    """Check the value of ``--listen``, or none. Raises AddressError."""
    from ...transport.address import is_wildcard, tcp_parts
    from ...transport.errors import AddressError

    if not listen:
        return
    try:
        host, _ = tcp_parts(listen)
    except AddressError:
        raise AddressError(f"--listen is {listen!r}; give tcp://HOST:PORT at which others reach this machine") from None
    if is_wildcard(host):
        raise AddressError(
            f"--listen is {listen!r}, which stands for every address of this machine; give the one at which others reach it"
        )


def labels_of(words: list[str]) -> dict[str, str]:
    """Return labels from ``NAME=VALUE``. Raises CommandError."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name or not value or name in found:
            raise CommandError(f"--label is {word!r}; give NAME=VALUE, each name once", 2)
        found[name] = value
    return found

"""Shared parts of commands that talk to a server: its address, a key, and the fields of a request as flags.

Not a command. A server's refusal becomes a ``CommandError``.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import CommandError, command_errors

if TYPE_CHECKING:
    from ..program.blocking import BlockingSession
    from ..program.stdlib_client import StdlibSession

UNKNOWN = ("model_not_found",)
# mistakes in changing the served applications
CHANGES = (*UNKNOWN, "conflict", "invalid_value", "invalid_type", "permission_denied")
DEFAULT_URL = "http://127.0.0.1:8000"
BARE = re.compile(r"[A-Za-z0-9.-]+:\d+/?|\[[0-9a-f:]+\]:\d+/?")


def is_address(text: str) -> bool:
    """Return True if the text means a server's address: with a scheme, or as ``host:port``."""
    return text.startswith(("http://", "https://")) or (BARE.fullmatch(text) is not None and not Path(text).exists())


def address(text: str) -> str:
    """Return an argument that is a server's address; ``http://`` may be omitted before a port."""
    if BARE.fullmatch(text):
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # its port is not a number from 0 to 65535
        whole = False
    if not whole:
        raise argparse.ArgumentTypeError(f"is {text!r}; give an address like {DEFAULT_URL}")
    return text


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", type=address, default=DEFAULT_URL, help=f"where the server listens ({DEFAULT_URL})")
    add_key(parser)


def add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api-key-file", metavar="FILE", help="a file that begins with the API key")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a server, or for a checkpoint to start a cluster with."""
    text = f"a server's address, or a checkpoint folder to load for this command ({DEFAULT_URL})"
    parser.add_argument("target", nargs="?", metavar="URL_OR_PATH", help=text)
    parser.add_argument("--url", type=address, help="the server's address, as for other commands")
    parser.add_argument("--model", metavar="ID", help="model id (the server's default)")
    add_key(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, if the model is loaded from a folder"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add flags for fields of the API; without a flag, the checkpoint's default applies."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 takes the most probable token each time")
    parser.add_argument(
        "--top-p", type=float, metavar="X", help="sample from the most probable tokens with this total probability"
    )
    parser.add_argument("--top-k", type=int, metavar="N", help="sample from this many of the most probable tokens")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this text")
    parser.add_argument("--verbose", action="store_true", help="print token counts and speed")


def sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "model")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def read_key(file: str | None) -> str:
    """Return the first word of a file that is not a comment."""
    if file is None:
        return ""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError as error:
        raise CommandError(f"{file} cannot be read ({error.strerror}); check --api-key-file", 2) from None
    for line in lines:
        if line.split() and not line.startswith("#"):
            return line.split()[0]
    raise CommandError(f"{file} holds no key; write the key on the first line", 2)


@contextlib.contextmanager
def connected(arguments: argparse.Namespace, mistakes: Collection[str] = UNKNOWN) -> Iterator[StdlibSession]:
    """Yield a session with the server at ``--url``. ``mistakes``: see ``answers``."""
    from ..program.stdlib_client import StdlibSession

    with answers(mistakes), StdlibSession(arguments.url, read_key(arguments.api_key_file)) as session:
        yield session


@contextlib.contextmanager
def reached(arguments: argparse.Namespace) -> Iterator[BlockingSession]:
    """Yield a session with the target: a server, or a cluster started for this command."""
    from ..program.blocking import BlockingSession
    from ..program.client import Client

    with refusals():
        target = target_of(arguments)
        if is_address(target):
            try:
                client = Client(address(target), read_key(arguments.api_key_file))
            except argparse.ArgumentTypeError as error:
                raise CommandError(f"the server {error}", 2) from None
            with BlockingSession(client) as session:
                yield session
        else:
            with BlockingSession(_cluster(arguments, target)) as session:
                yield session


def target_of(arguments: argparse.Namespace) -> str:
    """Return the server's address or the checkpoint folder, from either of the two arguments for it."""
    if arguments.target is not None and arguments.url is not None:
        raise CommandError(f"both {arguments.target} and --url {arguments.url} are given; give one of them", 2)
    return str(arguments.target or arguments.url or DEFAULT_URL)


def _cluster(arguments: argparse.Namespace, target: str) -> Any:
    from ..program.embedded import Cluster

    settings = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set {text!r} has no '='; write --set key=value", 2)
        settings[name.strip()] = value
    return Cluster(target, **settings)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn refusals of a server or a cluster, and a failed start of a cluster, into the command's last sentence."""
    from ...actors.settings.errors import SettingsError, StartError
    from ...gpu.errors import CheckpointError

    with command_errors(SettingsError, CheckpointError, StartError), answers(UNKNOWN):
        yield


@contextlib.contextmanager
def answers(mistakes: Collection[str]) -> Iterator[None]:
    """Turn a server's refusal into the command's last sentence.

    The exit code is 2 for the error codes in ``mistakes``, which are faults of the command line.
    """
    from ..program.results import RequestError

    try:
        yield
    except RequestError as error:
        if error.code == "invalid_api_key":
            raise CommandError(
                f"{error.message.partition(';')[0]}; name a file that holds one: --api-key-file FILE", 2
            ) from None
        raise CommandError(error.message, 2 if error.code in mistakes else 1) from None

"""The command ``gateway``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import command_errors
from .worker import TEXT, check_listen, given_text, labels_of, run_member, say

if TYPE_CHECKING:
    from ..serve.joined_gateway import GatewayStarting


def gateway_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="WHERE", help=TEXT)
    parser.add_argument("--name", default="", help="name of this gateway, unique in the cluster (host name and process id)")
    parser.add_argument("--host", default="127.0.0.1", help="address at which it answers HTTP (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="port of that, 0 for any free one (8000)")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="a label to show, such as zone=a; may be repeated"
    )
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="tcp://HOST:PORT where members reach this gateway")


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"is {text}; give a number from 1 to 65535, or 0 for any free one")
    return number


def gateway(arguments: argparse.Namespace) -> int:
    """Join a server on another machine as one more gateway, and answer HTTP until
    you stop it.

    You need a join text (blockwright keys join --role gateway) and this release, no
    model: tokenizers, chat templates, keys and settings come from the server. Any
    balancer may stand before several gateways; any of them can be asked about any
    request. /health/ready says when it can answer.

    SIGTERM or Ctrl-C drains it: it takes no more connections, running requests end
    (drain_timeout), then it ends with code 0. The second one ends it at once. If
    the server ends it, or is gone, the code is 1. The server does not restart it:
    let a service manager do that.
    """
    from ...actors.settings.errors import SettingsError
    from ...transport.errors import TransportError

    with command_errors(SettingsError, TransportError):
        given = starting(arguments)
    from ..serve.joined_gateway import serve

    return run_member(lambda: serve(given, say))


def starting(arguments: argparse.Namespace) -> GatewayStarting:
    """Return what the arguments say. Raises AddressError, CommandError."""
    from ...runtime.cluster.join_text import GATEWAY
    from ..serve.joined_gateway import GatewayStarting

    check_listen(arguments.listen)
    text = given_text(arguments.join, GATEWAY)
    return GatewayStarting(
        text, arguments.name, arguments.listen, arguments.host, arguments.port, labels_of(arguments.label)
    )

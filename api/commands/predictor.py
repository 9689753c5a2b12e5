"""The command ``predictor``."""

from __future__ import annotations

import argparse

from . import command_errors
from .worker import TEXT, check_listen, given_text, labels_of, run_member, say


def predictor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="WHERE", help=TEXT)
    parser.add_argument("--name", default="", help="name of this process, unique in the cluster (host name and process id)")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="a label to show, such as zone=a; may be repeated"
    )
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="tcp://HOST:PORT where members reach this process")


def predictor(arguments: argparse.Namespace) -> int:
    """Join a server on another machine as one more process of predictors and
    dispatchers, until you stop it.

    They are for dispatch policies that forecast requests. Workers of this machine
    are predicted here, others by the server's own process; gateways ask all of the
    dispatchers in turn. You need a join text (blockwright keys join --role
    predictor) and this release, no model.

    SIGTERM or Ctrl-C ends it with code 0; others go on. If the server ends it, or
    is gone, the code is 1. The server does not restart it: let a service manager do
    that.
    """
    from ...runtime.cluster.join_text import PREDICTOR
    from ...transport.errors import TransportError

    with command_errors(TransportError):
        check_listen(arguments.listen)
        text = given_text(arguments.join, PREDICTOR)
    labels = labels_of(arguments.label)
    from ...actors.predictor.joined import PredictorStarting, serve

    return run_member(lambda: serve(PredictorStarting(text, arguments.name, arguments.listen, labels), say))

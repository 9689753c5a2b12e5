"""The command ``serve``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...actors.settings.errors import SettingsError
from . import command_errors

if TYPE_CHECKING:
    from ...actors.settings.settings import Settings
    from ..serve.keeper import HandedOn

# flags that are fields of Settings: name of the flag -> name of the field
FLAGS = {name: name for name in ("workers", "device", "dtype", "host", "port", "max_model_len", "tls_cert", "tls_key")}
FLAGS |= {"cors_origin": "cors_origins", "listen": "listen", "keys": "head_keys", "join_file": "join_file"}


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", metavar="N", help="port to listen on, 0 for any free one (8000)")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="lines of 'key', 'key tenant' or 'key tenant admin'; without it no key is needed",
    )
    parser.add_argument(
        "--cors-origin", metavar="ORIGINS", help="origins whose web pages may send requests, or * for all (none)"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="certificate chain in PEM; with --tls-key the server is https only"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="private key in PEM")
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="tcp://HOST:PORT at which workers on other machines join, port 0 for any (none)"
    )
    parser.add_argument("--keys", metavar="FOLDER", help="the head's keys, from blockwright keys new; needed with --listen")
    parser.add_argument("--join-file", metavar="FILE", help="write a join text for workers there once the head listens")
    parser.add_argument("--zoo", metavar="FOLDER", help="serve the applications of a zoo: all, or the one in PATH_OR_HUB_ID")
    parser.add_argument("--show-settings", action="store_true", help="print all settings as a file for --config, and exit")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a cluster, for every command that starts one."""
    parser.add_argument(
        "model", nargs="?", metavar="PATH_OR_HUB_ID", help="checkpoint folder or hub id; its name is the model id"
    )
    parser.add_argument("--workers", metavar="N", help="worker processes (1)")
    parser.add_argument("--device", help="where models run: cpu, cuda, cuda:1 or auto; cuda-mirror is for tests (cpu)")
    parser.add_argument("--dtype", help="auto, float32 or bfloat16 (auto)")
    parser.add_argument(
        "--app",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another checkpoint and its model id; may be repeated",
    )
    parser.add_argument("--config", metavar="FILE", help="settings in TOML")
    parser.add_argument("--max-model-len", metavar="N", help="most tokens of prompt and answer together")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as --set memory=2GiB; may be repeated",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Serve checkpoints over HTTP until you stop it.

    The model id of the first checkpoint is the name of its folder (or the hub id).
    There are flags for the most common settings; use --set or --config for all
    others, and --show-settings to list them. With --set origin=http://HOST:PORT a
    model that is not here can be named by its name in the zoo that is served there.

    For example, a base model and a fine-tune of it on two workers:
    blockwright serve models/base --app legal=models/legal --workers 2
    """
    from ..settings.options import make_settings

    with command_errors(SettingsError):
        settings = make_settings(
            arguments.model,
            apps=arguments.app,
            zoo=arguments.zoo,
            flags={field: value for name, field in FLAGS.items() if (value := getattr(arguments, name)) is not None},
            sets=arguments.set,
            config=arguments.config,
            key_file=arguments.api_key_file,
            need_model=not arguments.show_settings,
        )
    if arguments.show_settings:
        from ..settings.text import as_toml

        print(as_toml(settings), end="")
        return 0
    from ...actors.worker_processes import WORKER_MODULES
    from ..serve.keeper import Keeper

    def head(given: HandedOn) -> int:
        return serve_here(arguments, settings, given)

    faults = settings.faults
    return Keeper(head, WORKER_MODULES, faults.orphan_grace, faults.silence).keep()


def serve_here(arguments: argparse.Namespace, settings: Settings, given: HandedOn) -> int:
    """Be the head, in a process that the keeper has had forked; return the exit code."""
    from ...actors.worker_processes import worker_launcher
    from ...runtime.cluster.processes import KeptForkserver
    from ..serve.server import run as run_server
    from ..settings.secret_files import warnings_of

    warnings = warnings_of(arguments.api_key_file, arguments.config, settings.network.tls_key, settings.joining.head_keys)
    launcher = worker_launcher(settings.network.directory, KeptForkserver(given.address, given.first))
    return run_server(settings, launcher, warnings, given)

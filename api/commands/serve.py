"""Serves checkpoints over HTTP until a signal comes.

The first checkpoint's model id is its folder's name (or the hub id). Flags are the few that people expect; everything else
is a setting, reached by --set or --config.
"""

from __future__ import annotations

import argparse

from blockwright.actors.config import SettingsError
from blockwright.api.commands import CommandError

# flags that are fields of Settings: name of the flag -> name of the field
FLAGS = {name: name for name in ("workers", "device", "dtype", "host", "port", "max_model_len", "tls_cert", "tls_key")}
FLAGS["cors_origin"] = "cors_origins"


def add(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", metavar="N", help="port to listen on, 0 for any free one (8000)")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="lines of 'key', 'key tenant' or 'key tenant admin'; without it no key is needed",
    )
    parser.add_argument(
        "--cors-origin", metavar="ORIGINS", help="web pages that may ask from a browser, or * for all (none)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain in PEM; with --tls-key https only")
    parser.add_argument("--tls-key", metavar="FILE", help="private key in PEM")
    parser.add_argument("--zoo", metavar="FOLDER", help="serve what a zoo has: all, or the one that PATH_OR_HUB_ID names")
    parser.add_argument("--show-settings", action="store_true", help="print all settings as a file for --config, and end")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """What describes a cluster, wherever it is started from."""
    parser.add_argument("model", nargs="?", metavar="PATH_OR_HUB_ID", help="checkpoint folder or hub id; its id is its name")
    parser.add_argument("--workers", metavar="N", help="worker processes (1)")
    parser.add_argument("--device", help="where models run: cpu; there is no GPU back end yet (cpu)")
    parser.add_argument("--dtype", help="auto, float32 or bfloat16 (auto)")
    parser.add_argument(
        "--app", action="append", default=[], metavar="NAME=PATH", help="a further checkpoint and its model id"
    )
    parser.add_argument("--config", metavar="FILE", help="settings in TOML")
    parser.add_argument("--max-model-len", metavar="N", help="most tokens of prompt and answer together")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for instance --set memory=2GiB"
    )


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.settings.options import make_settings

    try:
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
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    if arguments.show_settings:
        from blockwright.api.settings.text import as_toml

        print(as_toml(settings), end="")
        return 0
    from blockwright.api.serve.server import run as serve

    return serve(settings)

"""The commands ``keys new`` and ``keys join``: a head's key pair, and the texts with which nodes join. No head need run."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from . import CommandError, command_errors

UNITS = {"m": 60, "h": 3600, "d": 86400}
MOST = 3650 * 86400  # seconds


def keys_new_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder for the keys; it is made if there is none")


def keys_new(arguments: argparse.Namespace) -> int:
    """Make the key pair of a head, with which other machines reach it encrypted.

    Pass the folder to blockwright serve --listen --keys. Only you may read the
    secret key, with which any machine can be let in.
    """
    from ...runtime.cluster.key_folder import make_keys
    from ...transport.errors import KeysError

    check_folder(arguments.folder)
    with command_errors(KeysError):
        keys = make_keys(Path(arguments.folder))
    print(f"made keys in {arguments.folder}; the public one is {keys.name}")
    return 0


def check_folder(folder: str) -> None:
    """Refuse an empty name, which would stand for the current folder. Raises CommandError."""
    if not folder.strip():
        raise CommandError(f"FOLDER is {folder!r}; name a folder for keys, such as keys", 2)


def keys_join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder with the head's keys")
    parser.add_argument(
        "--address",
        required=True,
        metavar="HOST:PORT",
        help="where nodes reach the head; several with commas between, or @FILE: those of a join text",
    )
    parser.add_argument("--role", default="worker", help="what it admits: worker, gateway, predictor or node (worker)")
    parser.add_argument(
        "--lasting", type=lasting, default=lasting("720h"), metavar="TIME", help="how long it is valid: 90m, 12h, 30d (720h)"
    )


def lasting(text: str) -> int:
    """Return a length of time in seconds."""
    match = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    seconds = int(match[1]) * UNITS[match[2]] if match is not None else 0
    if not 0 < seconds <= MOST:
        raise argparse.ArgumentTypeError(f"is {text!r}; give minutes, hours or days, such as 90m, 12h or 30d, up to 3650d")
    return seconds


def addresses_of(given: str) -> list[str]:
    """Return the addresses that ``--address`` names. Raises CommandError for a file that cannot be used."""
    from ...runtime.cluster.join_text import LONGEST, JoinText
    from ...transport.errors import AddressError

    if not given.startswith("@"):
        return [part.strip() for part in given.split(",")]
    try:
        return list(JoinText.parse(Path(given[1:]).read_text(errors="replace")[:LONGEST]).addresses)
    except (OSError, AddressError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no join text"
        raise CommandError(f"--address is {given!r}, but that file cannot be used ({reason}); name a join text", 2) from None


def keys_join(arguments: argparse.Namespace) -> int:
    """Print a text with which workers, or gateways, join a server, as often as it is
    used, until it expires.

    The head need not run. The text is as good as a worker, so treat it as a
    password: write it to a file that only its user may read, and pass it as
    blockwright worker --join @FILE, or gateway --join @FILE. To withdraw it, name
    its id in the setting revoked_joins of the server. The id and the end are
    printed on standard error.
    """
    from ...runtime.cluster.join_text import JoinTexts, check_addresses, moment
    from ...runtime.cluster.key_folder import read_keys
    from ...transport.errors import AddressError, KeysError

    check_folder(arguments.folder)
    with command_errors(AddressError, KeysError):
        addresses = addresses_of(arguments.address)
        texts = JoinTexts(read_keys(Path(arguments.folder)))
        try:
            check_addresses(addresses)
        except AddressError as error:
            whole = f" is {arguments.address!r}" if len(addresses) > 1 else ""
            raise CommandError(f"--address{whole}: {error}", 2) from None
        text = texts.issue(addresses, arguments.role, int(time.time()) + arguments.lasting)
    print(text.pack())
    print(f"join text {text.id} for the role {text.role}, valid until {moment(text.expires)}", file=sys.stderr)
    return 0

"""The commands of a zoo, and their output: sentences, tables, and the same as plain data (``docs/schemas/``)."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...policies.binary_size import binary_size
from ..saving import shared_part
from . import CommandError
from .output import FittedTable, print_json, print_tables

if TYPE_CHECKING:
    from ...zoo.add import AddedModel
    from ...zoo.profiles import StoredProfile
    from ...zoo.records import StoredChain
    from ...zoo.verify import Verified
    from ...zoo.zoo import ListedBlock, Listing

DEFAULT = "~/.blockwright/zoo"


def zoo_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH_OR_ID", help="checkpoint or adapter folder, hub id, or ZOO/chains/NAME of a zoo"
    )
    parser.add_argument("--name", metavar="APP", required=True, help="name of the application")
    parser.add_argument(
        "--base",
        metavar="APP",
        default="",
        help="the application it was made from (of an adapter the one it names, or the only one; else the most similar)",
    )
    add_zoo(parser)


def zoo_add(arguments: argparse.Namespace) -> int:
    """Add a model to a zoo: a folder of models in which each distinct tensor is
    stored once.

    Only new tensors are stored. The model appears in the zoo when it is complete;
    if the command is interrupted, the zoo is unchanged, and you can run it again.
    """
    from ...zoo.add import add as add_model

    with zoo_refusals(), progress() as show:
        added = add_model(
            arguments.zoo, arguments.source, arguments.name, base=arguments.base, progress=show, waiting=waiting
        )
    print(added_line(added))
    return 0


def added_line(added: AddedModel) -> str:
    on = f"on {added.base}; " if added.adapter else ""
    if added.there:
        restored = f"; {binary_size(added.stored)} were missing and are there again" if added.stored else ""
        return f"{added.application}: {on}is there already{restored}"
    if not added.shared:
        return f"{added.application}: {on}shares no blocks, +{binary_size(added.stored)}"
    others = f" with {added.base}" if added.base and not added.adapter else ""
    return f"{added.application}: {on}shares {shared_part(added.shared)} of its blocks{others}, +{binary_size(added.stored)}"


def zoo_list_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser, json=True)


def zoo_list(arguments: argparse.Namespace) -> int:
    """List the applications of a zoo: what each is based on, how large it is, and how
    much of that no other application needs. Surrogates of their blocks follow.
    """
    from ...zoo.surrogate.records import surrogates_of
    from ...zoo.zoo import Zoo
    from .surrogate_views import surrogate_view, surrogates_table

    with zoo_refusals():
        zoo = Zoo(arguments.zoo)
        view = list_view(zoo.listings())
        view["surrogates"] = [
            surrogate_view(one, name, zoo.components(name)) for name in zoo.names() for one in surrogates_of(zoo, name)
        ]
    if arguments.json:
        print_json(view)
    else:
        print_tables(list_table(view))
        if view["surrogates"]:
            print_tables("", surrogates_table(view))
    return 0


def list_view(listings: Sequence[Listing]) -> dict[str, Any]:
    return {
        "applications": [
            {
                "id": one.application,
                "base": one.base or None,
                "bytes": one.nbytes,
                "own_bytes": one.owned,
                "shared": round(one.shared, 6),
            }
            for one in listings
        ]
    }


def list_table(view: Mapping[str, Any]) -> FittedTable:
    rows = [
        (one["id"], one["base"] or "-", binary_size(one["bytes"]), binary_size(one["own_bytes"]), shared_part(one["shared"]))
        for one in view["applications"]
    ]
    return FittedTable(("APPLICATION", "BASE", "SIZE", "OWNS", "SHARES"), rows, numbers=3, least=("BASE", "SIZE"))


def zoo_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP")
    add_zoo(parser, json=True)


def zoo_show(arguments: argparse.Namespace) -> int:
    """Show an application of a zoo: its blocks, which are cut only where the
    applications of the zoo differ, and the applications that share each of them.
    """
    from ...zoo.profiles import profiles_of
    from ...zoo.zoo import Zoo

    with zoo_refusals():
        zoo = Zoo(arguments.zoo)
        name = arguments.name
        view = show_view(zoo.folder(name), zoo.chain(name), zoo.blocks(name), profiles_of(zoo, name))
    if arguments.json:
        print_json(view)
    else:
        print_tables(*show_tables(view))
    return 0


def show_view(
    folder: Path, chain: StoredChain, blocks: Sequence[ListedBlock], profiles: Sequence[StoredProfile]
) -> dict[str, Any]:
    return {
        "id": chain.application,
        "base": chain.base or None,
        "folder": str(folder),
        "source": chain.source,
        "architecture": chain.model.architecture,
        "dtype": chain.model.dtype,
        "max_length": chain.model.max_position,
        "files": sorted(chain.files),
        "profiles": [
            {
                "file": str(one.path),
                "device": f"{one.profile['device']['cpu']}, {one.profile['device']['threads']} threads",
                "numerics": one.profile["device"]["numerics"],
                "error": one.profile["error"]["mape"],
            }
            for one in profiles
        ],
        "blocks": [
            {
                "id": one.block.id.hex(),
                "first": one.first,
                "last": one.last,
                "kinds": [component.kind.value for component in one.block.components],
                "bytes": one.block.nbytes,
                "shared_with": list(one.others),
            }
            for one in blocks
        ],
    }


def show_tables(view: Mapping[str, Any]) -> tuple[str, FittedTable]:
    rows = [
        (
            one["id"][:12],
            f"{one['first']}-{one['last'] - 1}" if one["last"] - one["first"] > 1 else f"{one['first']}",
            ", ".join(dict.fromkeys(one["kinds"])),
            ", ".join(one["shared_with"]) or "-",
            binary_size(one["bytes"]),
        )
        for one in view["blocks"]
    ]
    head = f"{view['id']}: {view['architecture']} in {view['dtype']}, {view['max_length']:,} tokens"
    lines = [head, f"base    {view['base'] or '-'}", f"source  {view['source']}", f"folder  {view['folder']}"]
    lines += [f"profile {one['file']} ({one['device']}, {one['numerics']})" for one in view["profiles"]]
    lines.append("")
    columns = ("BLOCK", "COMPONENTS", "KINDS", "SHARED WITH", "SIZE")
    return "\n".join(lines), FittedTable(columns, rows, numbers=1, least=("KINDS",))


def zoo_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser, json=True)


def zoo_verify(arguments: argparse.Namespace) -> int:
    """Read everything in a zoo and compare it with what was stored. It finds a
    single flipped bit.

    The exit code is 1 if something is damaged. Each line names a file, the expected
    and the actual value, and the applications that need it. To repair a tensor,
    delete its file and add a model that has the same tensor.
    """
    from ...zoo.verify import verify

    with zoo_refusals(), progress() as show:
        verified = verify(arguments.zoo, lambda done, total: show("hashing", done, total))
    if arguments.json:
        print_json(verify_view(verified))
    else:
        print("\n".join(verify_lines(verified)))
    return 1 if verified.faults else 0


def verify_view(verified: Verified) -> dict[str, Any]:
    return {
        "applications": verified.chains,
        "tensors": verified.tensors,
        "bytes": verified.nbytes,
        "faults": [
            {"file": str(one.path), "expected": one.expected, "found": one.found, "applications": list(one.chains)}
            for one in verified.faults
        ],
    }


def verify_lines(verified: Verified) -> Iterator[str]:
    for one in verified.faults:
        users = (
            f"needed by {', '.join(one.chains)}" if one.chains else "no model needs it, and 'blockwright zoo gc' deletes it"
        )
        yield f"{one.path}: expected {one.expected}, found {one.found}; {users}"
    whole = "damaged" if verified.faults else "whole"
    yield f"{whole}: {verified.chains} applications, {verified.tensors} tensors, {binary_size(verified.nbytes)}"


def zoo_remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP")
    add_zoo(parser)


def zoo_remove(arguments: argparse.Namespace) -> int:
    """Remove an application from a zoo; 'blockwright zoo gc' then deletes the files
    that no other application needs.

    It is refused while a server serves the application from the zoo.
    """
    from ...zoo.remove import remove

    with zoo_refusals():
        remove(arguments.zoo, arguments.name, waiting=waiting)
    print(f"{arguments.name}: removed; 'blockwright zoo gc' deletes what no other model needs")
    return 0


def zoo_gc_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser)


def zoo_gc(arguments: argparse.Namespace) -> int:
    """Delete files of a zoo that no application needs: tensors of removed
    applications, and the leftovers of interrupted commands.

    It is safe while servers and other commands use the zoo.
    """
    from ...zoo.remove import gc

    with zoo_refusals():
        freed = gc(arguments.zoo, waiting=waiting)
    print(f"deleted {freed.files} files, {binary_size(freed.nbytes)}")
    return 0


def add_zoo(parser: argparse.ArgumentParser, json: bool = False) -> None:
    """Add the argument for the folder of a zoo, and with ``json`` the one for output as JSON."""
    parser.add_argument("--zoo", metavar="FOLDER", type=folder, default=DEFAULT, help=f"the zoo ({DEFAULT})")
    if json:
        parser.add_argument("--json", action="store_true", help="the same as JSON")


def folder(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # "~" of an unknown user
        raise argparse.ArgumentTypeError(f"is {text!r}: {error}") from None


def waiting() -> None:
    print("waiting for another writer of the zoo ...", file=sys.stderr)


@contextlib.contextmanager
def zoo_refusals() -> Iterator[None]:
    """Turn a zoo's refusal into the command's last sentence.

    The exit code is 1 for a fault of a disk, 2 for a fault of the call.
    """
    from ...gpu.errors import CheckpointError
    from ...zoo.errors import StorageError, ZooDamaged

    try:
        yield
    except CheckpointError as error:
        raise CommandError(str(error), 1 if isinstance(error, StorageError | ZooDamaged) else 2) from None
    except BrokenPipeError:  # of our output, which ``main`` handles
        raise
    except OSError as error:
        raise CommandError(f"{error.filename or 'the zoo'}: {error.strerror}") from None


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that shows the bytes done on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        yield show

"""The command that makes a surrogate: a smaller block that may be computed in place of a block of an application."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from . import CommandError
from .block_names import component_names
from .output import print_json, print_tables
from .surrogate_views import surrogate_line, surrogate_notes, surrogate_table, surrogate_view
from .training_data import DATA_HELP
from .zoo import add_zoo, waiting, zoo_refusals
from .zoo_equivalence import ComparisonProgress

if TYPE_CHECKING:
    from ...gpu.backend import HostBackend
    from ...zoo.surrogate.making import SurrogateSite
    from ...zoo.surrogate.records import StoredSurrogate
    from ...zoo.zoo import ListedBlock

FORM = "a block's id or components as 'zoo show' prints them, or layers such as 'layers 0-1' or 'feed-forward 2'"
LEAST_DIGITS = 12  # of a block's id
LONGEST_NUMBER = 9  # digits of a place or layer


def zoo_surrogate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP", help="an application of the zoo")
    parser.add_argument("block", metavar="BLOCK", help=FORM)
    parser.add_argument("--text", metavar="FILE", default="", help="probe text (else from --data)")
    parser.add_argument("--data", metavar="FILE", default="", help=f"examples that the probe is made of: {DATA_HELP}")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="kernel threads that are timed (0: all cores)")
    add_zoo(parser, json=True)


def zoo_surrogate(arguments: argparse.Namespace) -> int:
    """Make a surrogate of a block: a smaller block that may be computed in its place
    where an approximate answer is enough, as for drafts.

    An equivalent smaller block that the zoo knows is taken. Otherwise half of the
    heads and of the feed-forward's columns are removed, and what is left is
    repaired on a probe. Similarity and speed are measured, and all is stored in the
    zoo, by the content of the blocks. One that was made with the same probe is
    shown again.
    """
    import torch

    from ...actors.resources import cores
    from ...actors.settings.workers import WorkerSettings
    from ...actors.sizing import serving_dtype
    from ...gpu.select import open_backend
    from ...zoo.surrogate.making import make_surrogate, open_site
    from ...zoo.zoo import Zoo
    from .probe_text import ComparisonData

    threads = arguments.threads or cores()
    if not 1 <= threads <= cores():
        raise CommandError(f"--threads is {arguments.threads}; give 1 to {cores()}, or 0 for all cores", 2)
    with zoo_refusals():
        zoo = Zoo(arguments.zoo)
        site = chosen_site(open_site(arguments.zoo, arguments.name), zoo.blocks(arguments.name), arguments.block)
        texts = ComparisonData([site.checkpoint] * 2, (arguments.name,) * 2)
        _, probe = texts.prompts_and_probe(arguments.data, arguments.text)
        torch.set_num_threads(cores())
        dtype = serving_dtype(WorkerSettings(), {arguments.name: site.checkpoint.config})
        backend = cast("HostBackend", open_backend("auto", dtype, threads))
        made = make_surrogate(site, probe, backend, threads, progress=ComparisonProgress().show, waiting=waiting)
        view = surrogate_view(made, arguments.name, [*zoo.components(arguments.name)])
    if arguments.json:
        print_json(view | {"source": source_of(zoo, arguments.name, made)})
    else:
        print_tables(surrogate_line(view), surrogate_table(view), *surrogate_notes(view))
        print(f"a chain with it: {source_of(zoo, arguments.name, made)}")
    return 0


def chosen_site(whole: SurrogateSite, blocks: Sequence[ListedBlock], text: str) -> SurrogateSite:
    """Return the block that ``text`` names. Raises CommandError and CheckpointError."""
    from ...zoo.surrogate.making import SurrogateSite, narrowed
    from ...zoo.zoo import Zoo

    names = component_names([*Zoo(whole.root).components(whole.name)])
    first, last = extent(text, names, [(one.block.id.hex(), one.first, one.last) for one in blocks], whole.name)
    return narrowed(SurrogateSite(whole.root, whole.name, whole.checkpoint, first, last), text)


def extent(text: str, names: Sequence[str], blocks: Sequence[tuple[str, int, int]], application: str) -> tuple[int, int]:
    """Return the first component of a named block and the one behind its last. Raises CommandError.

    ``blocks``: id, first component and the one behind the last of each.
    """
    if len(text) >= LEAST_DIGITS and re.fullmatch("[0-9a-f]+", text):
        found = [(first, last) for id, first, last in blocks if id.startswith(text)]
        if len(found) != 1:
            there = ", ".join(id[:LEAST_DIGITS] for id, _, _ in blocks)
            raise CommandError(f"{application} has no block {text[:40]}; there are: {there}", 2)
        return found[0]
    number = rf"(\d{{1,{LONGEST_NUMBER}}})(?:-(\d{{1,{LONGEST_NUMBER}}}))?"
    match = re.fullmatch(rf"(?:(layer|attention|feed-forward)s? )?{number}", text)
    if match is None:
        raise CommandError(f"{text[:60]!r} names no block; give {FORM}", 2)
    kind = match[1]
    low, high = int(match[2]), int(match[3] or match[2])
    places = [i for i, name in enumerate(names) if _is_named(name, i, kind, low, high)]
    if high < low or not places or not _is_named(names[places[-1]], places[-1], kind, high, high):
        last = max((int(name.rpartition(" ")[2]) for name in names if " " in name), default=0)
        there = f"components 0 to {len(names) - 1} and layers 0 to {last}"
        raise CommandError(f"{application} has no {text}; it has {there}", 2)
    return places[0], places[-1] + 1


def _is_named(name: str, place: int, kind: str | None, low: int, high: int) -> bool:
    if kind is None:
        return low <= place <= high
    own, _, number = name.rpartition(" ")
    return bool(own) and low <= int(number) <= high and (kind == "layer" or own in (kind, "layer"))


def source_of(zoo: Any, name: str, made: StoredSurrogate) -> str:
    """Return the source of the chain of an application in which the surrogate stands."""
    from ...policies.adaptive.variants import Swap, variant_source

    place = made.place(zoo.chain(name).components)
    assert place is not None, "the application has the block"
    return variant_source(str(zoo.folder(name)), [Swap(*place, made.surrogate)])

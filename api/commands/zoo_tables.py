"""The output of the zoo commands: a sentence on an added model, tables, and the same as plain data (``docs/schemas/``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...zoo.add import AddedModel
from ...zoo.profiles import StoredProfile
from ...zoo.records import StoredChain
from ...zoo.verify import Verified
from ...zoo.zoo import ListedBlock, Listing
from ..saving import shared_part
from .output import FittedTable
from .tables import size


def added_line(added: AddedModel) -> str:
    on = f"on {added.base}; " if added.adapter else ""
    if added.there:
        restored = f"; {size(added.stored)} were missing and are there again" if added.stored else ""
        return f"{added.application}: {on}is there already{restored}"
    if not added.shared:
        return f"{added.application}: {on}shares no blocks, +{size(added.stored)}"
    others = f" with {added.base}" if added.base and not added.adapter else ""
    return f"{added.application}: {on}shares {shared_part(added.shared)} of its blocks{others}, +{size(added.stored)}"


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
        (one["id"], one["base"] or "-", size(one["bytes"]), size(one["own_bytes"]), shared_part(one["shared"]))
        for one in view["applications"]
    ]
    return FittedTable(("APPLICATION", "BASE", "SIZE", "OWNS", "SHARES"), rows, numbers=3, least=("BASE", "SIZE"))


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
            size(one["bytes"]),
        )
        for one in view["blocks"]
    ]
    head = f"{view['id']}: {view['architecture']} in {view['dtype']}, {view['max_length']:,} tokens"
    lines = [head, f"base    {view['base'] or '-'}", f"source  {view['source']}", f"folder  {view['folder']}"]
    lines += [f"profile {one['file']} ({one['device']}, {one['numerics']})" for one in view["profiles"]]
    lines.append("")
    columns = ("BLOCK", "COMPONENTS", "KINDS", "SHARED WITH", "SIZE")
    return "\n".join(lines), FittedTable(columns, rows, numbers=1, least=("KINDS",))


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
        users = f"needed by {', '.join(one.chains)}" if one.chains else "needed by nobody"
        yield f"{one.path}: expected {one.expected}, found {one.found}; {users}"
    whole = "damaged" if verified.faults else "whole"
    yield f"{whole}: {verified.chains} applications, {verified.tensors} tensors, {size(verified.nbytes)}"

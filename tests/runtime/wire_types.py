"""What travels between nodes, compared with what the last release had of it (``runtime/base/wire_types.json``).

``python tests/runtime/wire_types.py`` writes that file when a release is made (CONTRIBUTING.md). Tags and places stay.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import sys
import types
import typing
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.base import envelope
from blockwright.runtime.base.schema import RECORDS, field_names, first_tag, record_name
from blockwright.transport.handshake import SPOKEN

ROOT = Path(__file__).parents[2]
FILE = ROOT / "runtime" / "base" / RECORDS
LAYERS = ("policies", "transport", "runtime", "actors", "zoo", "api")  # the layers whose values travel
READERS = ("decode", "decoder")  # functions whose first argument is what is read
Record = dict[str, Any]


# what travels now -----------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[Path, types.ModuleType]:
    found = {}
    for path in sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")):
        if path.name not in ("__main__.py", "cupy_memory.py", "pytest_plugin.py") and "_compiled" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[path] = importlib.import_module(".".join(["blockwright", *parts]).removesuffix(".__init__"))
    return found


def actor_classes(kind: type[Actor] = Actor) -> Iterator[type[Actor]]:
    """Yield the actors of the package, from the base on."""
    for derived in kind.__subclasses__():
        if derived.__module__.startswith(tuple(f"blockwright.{layer}." for layer in LAYERS)):
            yield derived
        yield from actor_classes(derived)


def read_by_name() -> Iterator[Any]:
    """Yield what modules read from bytes, without an endpoint: ``decode(Flight, …)``; and the configurations of nodes."""
    for path, module in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS
            text = ast.unparse(node.args[0]) if isinstance(node, ast.Call) and called and node.args else ""
            if text[:1].isupper() or text.startswith(("list[", "dict[")):
                yield eval(text, vars(module))
        for function in vars(module).values():
            own = inspect.iscoroutinefunction(function) and function.__module__ == module.__name__
            if own and list(inspect.signature(function).parameters) == ["node", "config"]:
                yield typing.get_type_hints(function)["config"]


def current() -> Record:
    """Return everything that travels, as this tree has it."""
    modules()
    kinds: dict[str, type] = {}
    endpoints: dict[str, dict[str, str]] = {}
    for actor in sorted(set(actor_classes()), key=lambda actor: actor.__qualname__):
        for name, declared in sorted(actor.endpoints.items()):
            hints = typing.get_type_hints(declared.function)
            parameters = list(inspect.signature(declared.function).parameters.values())[1:]
            required = {p.name: p.default is p.empty for p in parameters}
            shape = {p: spelling(hints[p], kinds) + ("" if required[p] else " = …") for p in required}
            endpoints[f"{actor.__qualname__}.{name}"] = shape | {"return": spelling(hints.get("return", Any), kinds)}
    for read in read_by_name():
        spelling(read, kinds)
    dataclasses_, enums = {}, {}
    done: set[str] = set()
    while todo := sorted(kinds.keys() - done):
        for name in todo:
            done.add(name)
            kind = kinds[name]
            if issubclass(kind, enum.Enum):
                enums[name] = [member.value for member in kind]
                continue
            hints = typing.get_type_hints(kind)
            dataclasses_[name] = {
                "tag": first_tag(kind),
                "fields": {field: spelling(hints[field], kinds) for field in field_names(kind)},
                "defaults": [f.name for f in dataclasses.fields(kind) if f.init and has_default(f)],
            }
    tags = {name: number for name, number in vars(envelope).items() if name.isupper() and type(number) is int}
    shapes = {
        name: [kind.__name__ for kind in envelope._SHAPES[tag]] for name, tag in tags.items() if tag in envelope._SHAPES
    }
    messages = {f"{tags[name]} {name}": shape for name, shape in shapes.items()}
    return {"types": dataclasses_, "enums": enums, "endpoints": endpoints, "messages": messages}


def has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def spelling(annotation: Any, kinds: dict[str, type]) -> str:
    """Return an annotation as text, alike for what is alike on the wire; the types of ours in it go to ``kinds``."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted({spelling(arg, kinds) for arg in args}))
    if origin is not None:
        outer = {Sequence: "list", Mapping: "dict", AsyncIterator: "stream"}.get(
            origin, getattr(origin, "__name__", str(origin))
        )
        return f"{outer}[{', '.join('...' if arg is ... else spelling(arg, kinds) for arg in args)}]"
    if isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or issubclass(annotation, enum.Enum)):
        if not (name := record_name(annotation)):
            raise TypeError(f"{annotation} travels, and is not of this package")
        kinds[name] = annotation
        return name
    return "None" if annotation in (None, type(None)) else getattr(annotation, "__name__", str(annotation))


# compared with the last release ---------------------------------------------------------------------------------------


def changes(last: Record, now: Record) -> list[str]:
    """Return a sentence for everything of ``now`` that the last release could not read, or that this one could not of it."""
    found = [one for name, record in last["types"].items() for one in type_changes(name, record, now["types"].get(name))]
    for name, values in last["enums"].items():
        new, gone = set(now["enums"].get(name, ())) - set(values), set(values) - set(now["enums"].get(name, ()))
        found += [f"{name} has the new value {value!r}, which the last release cannot read" for value in sorted(new)]
        found += [f"{name} lost the value {value!r}, which the last release sends" for value in sorted(gone)]
    for name, shape in last["endpoints"].items():
        found += endpoint_changes(name, shape, now["endpoints"].get(name))
    for name, shape in last["messages"].items():
        if now["messages"].get(name) != shape:
            found.append(f"the message {name} was {shape}; give what is new a tag of its own")
    return found


def type_changes(name: str, last: Record, now: Record | None) -> Iterator[str]:
    if now is None:
        yield f"{name} is gone, and the last release sends it; keep it for one more release"
        return
    known = last["places"] | last.get("named", {})
    for field, text in known.items():
        if field not in now["fields"]:
            if field in last["places"] and field not in last.get("fillers", {}):
                yield f"{name}.{field} was removed and has no filler; add one to {RECORDS}"
        elif now["fields"][field] != text:
            yield difference(f"{name}.{field}", text, now["fields"][field])
    for field in now["fields"]:
        if field not in known and field not in now["defaults"]:
            yield f"{name}.{field} was added without a default, and the last release does not send it; give it a default"


def endpoint_changes(name: str, last: dict[str, str], now: dict[str, str] | None) -> Iterator[str]:
    if now is None:
        yield f"the endpoint {name} is gone, and the last release calls it; keep it for one more release"
        return
    if (kept := [parameter for parameter in now if parameter in last]) != list(last):
        gone = [parameter for parameter in last if parameter not in now]
        yield f"the endpoint {name} lost or moved parameters: {', '.join(gone or kept)}"
    for parameter, text in now.items():
        if parameter in last and text.removesuffix(" = …") != last[parameter].removesuffix(" = …"):
            yield difference(f"{parameter} of the endpoint {name}", last[parameter], text)
        elif parameter in last and last[parameter].endswith(" = …") and not text.endswith(" = …"):
            yield f"{parameter} of the endpoint {name} lost its default, and the last release may leave it out"
        elif parameter not in last and not text.endswith(" = …"):
            yield f"{parameter} of the endpoint {name} was added without a default; give it one"
    added = [parameter for parameter in now if parameter not in last]
    if added and list(now)[-1 - len(added) : -1] != added:
        yield f"the endpoint {name} has new parameters before old ones: {', '.join(added)}; put them last"


def difference(what: str, last: str, now: str) -> str:
    before, after = (set(text.split(" | ")) for text in (last, now))
    if len(before) > 1 or len(after) > 1:
        words = [
            f"{word} {', '.join(sorted(parts))}"
            for word, parts in (("gained", after - before), ("lost", before - after))
            if parts
        ]
        return f"{what} {' and '.join(words)}, which one of two neighbouring releases cannot read"
    return f"{what} was {last} and is {now}, which one of two neighbouring releases cannot read"


# the file -------------------------------------------------------------------------------------------------------------


def recorded() -> Record:
    found: Record = json.loads(FILE.read_text())
    return found


def next_record(last: Record, now: Record, version: int = SPOKEN.highest) -> Record:
    """Return what the file holds when this tree is released with this version of the protocol."""
    kept = {}
    for name, record in now["types"].items():
        old = last["types"].get(name)
        if old is None:
            kept[name] = {"tag": record["tag"], "places": record["fields"]}
            continue
        fields = record["fields"]
        places = {field: fields.get(field, text) for field, text in old["places"].items()}
        named = {field: text for field, text in fields.items() if field not in places}
        fillers = {field: value for field, value in old.get("fillers", {}).items() if field not in fields}
        kept[name] = {"tag": old["tag"], "places": places}
        kept[name] |= {key: value for key, value in (("named", named), ("fillers", fillers)) if value}
    return {"version": version, **now, "types": kept}


def written(record: Record) -> str:
    """Return the file's text: a line for each thing, so that changes can be read and merged."""
    parts = [f'"version": {record["version"]}']
    for section in ("types", "enums", "endpoints", "messages"):
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in sorted(record[section].items())
        ]
        parts.append(f'"{section}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: Sequence[str]) -> int:
    """Record this tree as a release. ``--anew``: as the last release, with new tags, as if there had been none before."""
    now = current()
    if "--anew" in arguments:
        FILE.write_text(written(next_record({"types": {}}, now, SPOKEN.lowest)))
        return 0
    broken = changes(last := recorded(), now)
    print("\n".join(broken) or "the last release reads all of it")
    if broken and SPOKEN.lowest != SPOKEN.highest:
        print("nothing was written; mend these, or let the release speak to itself alone (SPOKEN)", file=sys.stderr)
        return 1
    FILE.write_text(written(next_record(last, now)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

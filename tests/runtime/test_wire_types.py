"""What travels between nodes can be read by the last release; what cannot is named (``wire_types.py``)."""

from __future__ import annotations

import copy

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.runtime import wire_types
from blockwright.transport.handshake import SPOKEN

NAME = "policies.Flight"


@pytest.fixture(scope="module")
def now():
    return wire_types.current()


@claim(
    "Everything that travels is compared with what the last release sent, and what it could not read is named",
    of="actor-runtime",
)
def test_the_last_release_reads_all_that_travels(now):
    last = wire_types.recorded()
    if SPOKEN.lowest > last["version"]:
        pytest.skip(f"this release says that it speaks to no earlier one: {SPOKEN}")
    assert last["version"] == SPOKEN.lowest, f"{wire_types.FILE.name} holds version {last['version']}, and we speak {SPOKEN}"
    broken = wire_types.changes(last, now)
    assert not broken, "neighbouring releases could not speak (CONTRIBUTING.md, A release):\n" + "\n".join(broken)


def test_what_travels_is_found(now):
    """By endpoints, by links and feeds, by configurations, by what these hold."""
    some = {"actors.WorkerConfig", NAME, "policies.PagesArrived", "policies.SweepReport", "runtime.Heartbeat"}
    assert some <= set(now["types"])
    assert now["endpoints"]["Worker.peer"]["report"] == "actors.PeerReport"
    assert now["messages"]["7 CALL"][:2] == ["int", "str"]
    assert any(name.startswith("policies.") for name in now["enums"])


def test_a_release_is_recorded_with_tags_and_places_kept(now):
    first = wire_types.next_record({"types": {}}, now)
    later = copy.deepcopy(now)
    fields = later["types"][NAME]["fields"]
    gone = next(iter(fields))
    del fields[gone]
    fields["lag"] = "float"
    later["types"][NAME] |= {"tag": 1, "defaults": ["lag"]}
    first["types"][NAME]["fillers"] = {gone: ""}
    assert wire_types.changes(first, later) == []
    second = wire_types.next_record(first, later)["types"][NAME]
    assert second["tag"] == first["types"][NAME]["tag"]
    assert list(second["places"]) == list(first["types"][NAME]["places"])
    assert second["named"] == {"lag": "float"}
    assert second["fillers"] == {gone: ""}


def added(record):
    record["types"][NAME]["fields"]["lag"] = "float"


def added_with_default(record):
    added(record)
    record["types"][NAME]["defaults"].append("lag")


def removed(record):
    del record["types"][NAME]["fields"]["home"]


def retyped(record):
    record["types"][NAME]["fields"]["width"] = "str"


def widened(record):
    record["types"][NAME]["fields"]["width"] = "None | int"


def type_gone(record):
    del record["types"][NAME]


def value_added(record):
    record["enums"]["transport.Traffic" if "transport.Traffic" in record["enums"] else next(iter(record["enums"]))].append(
        "x"
    )


def endpoint_gone(record):
    del record["endpoints"]["Worker.peer"]


def parameter_added(record):
    shape = record["endpoints"]["Worker.unload"]
    record["endpoints"]["Worker.unload"] = {
        **{k: v for k, v in shape.items() if k != "return"},
        "hard": "bool",
        "return": "int",
    }


def parameter_with_default(record):
    parameter_added(record)
    record["endpoints"]["Worker.unload"]["hard"] = "bool = …"


def parameter_first(record):
    record["endpoints"]["Worker.unload"] = {"hard": "bool = …", **record["endpoints"]["Worker.unload"]}


def parameter_gone(record):
    del record["endpoints"]["Worker.unload"]["holder"]


def answer_changed(record):
    record["endpoints"]["Worker.unload"]["return"] = "str"


def message_changed(record):
    record["messages"]["1 HELLO"] = ["str"]


def message_added(record):
    record["messages"]["99 NEW"] = ["str"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (added, f"{NAME}.lag was added without a default, and the last release does not send it; give it a default"),
        (added_with_default, None),
        (removed, f"{NAME}.home was removed and has no filler; add one to wire_types.json"),
        (retyped, f"{NAME}.width was int and is str"),
        (widened, f"{NAME}.width gained None"),
        (type_gone, f"{NAME} is gone"),
        (value_added, "has the new value 'x'"),
        (endpoint_gone, "the endpoint Worker.peer is gone"),
        (parameter_added, "hard of the endpoint Worker.unload was added without a default"),
        (parameter_with_default, None),
        (parameter_first, "the endpoint Worker.unload has new parameters before old ones: hard"),
        (parameter_gone, "the endpoint Worker.unload lost or moved parameters: holder"),
        (answer_changed, "return of the endpoint Worker.unload was int and is str"),
        (message_changed, "the message 1 HELLO was ['str', 'bool']"),
        (message_added, None),
    ],
)
def test_what_cannot_be_rolled_is_named(now, change, sentence):
    last, later = wire_types.next_record({"types": {}}, now), copy.deepcopy(now)
    change(later)
    found = wire_types.changes(last, later)
    assert len(found) == (0 if sentence is None else 1), found
    assert sentence is None or sentence in found[0]

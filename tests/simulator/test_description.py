"""What is wrong in a description is named with its file, line and field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from blockwright.simulator.description import DescriptionError, Scenario, profile, read
from blockwright.tests.claims import claim

GOOD = """seed = 3

[workload]
rate = 2.5
input_tokens = 10
output_tokens = 20

[[models]]
name = "m"
kv_bytes = 64

[[instances]]
profile = "p.json"
blocks = 10

[[instances]]
name = "big"
profile = "p.json"
memory = 1_000_000
"""


LISTS = """
[[deaths]]
instance = "big"
at = 1.0

[[heads]]
at = 1.0
away = 1.0

[[cuts]]
at = 1.0
seconds = 5.0
share = 0.5
"""


def write(folder: Path, text: str, name: str = "c.toml") -> Path:
    path = folder / name
    path.write_text(text)
    (folder / "p.json").write_text('{"schema": 1, "coefficients": {"base": 0.5}}')
    return path


def test_a_description_in_both_languages(tmp_path: Path) -> None:
    found, source = read(write(tmp_path, GOOD))
    assert (found.seed, found.workload.rate, found.instances[1].name, found.models[0].kv_bytes) == (3, 2.5, "big", 64)
    assert profile(found.instances[0], 0, source).base == 0.5
    table = {
        "workload": {"rate": 2.5, "input_tokens": 10, "output_tokens": 20},
        "models": [{"name": "m", "kv_bytes": 64}],
        "instances": [{"profile": "p.json", "blocks": 10}, {"name": "big", "profile": "p.json", "memory": 1_000_000}],
        "seed": 3,
    }
    assert read(write(tmp_path, json.dumps(table), "c.json"))[0] == found


def test_fields_can_be_set_from_outside(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    changes = ["workload.rate=7", "instances.1.name=other", "dispatch.policy=min-qpm"]
    found, _ = read(path, changes)
    assert (found.workload.rate, found.instances[1].name, found.dispatch.policy) == (7, "other", "min-qpm")
    for change in (
        "instances.7.name=x",
        "instances.-1.name=x",
        "=5",
        "workload.=5",
        "workload",
        "instances=3.x=4",
        "seed.a=1",
    ):
        with pytest.raises(DescriptionError, match=r"names no field|is '3.x=4'; give a list"):
            read(path, [change])


def test_bytes_may_have_a_unit_wherever_they_are_given(tmp_path: Path) -> None:
    sizes = {"kv_bytes": "64", "parameters": "1 KiB", "embedding": "1B", "head": "2B", "hidden_bytes": "0.5KiB"}
    text = GOOD.replace("kv_bytes = 64", "\n".join(f'{name} = "{size}"' for name, size in sizes.items()))
    text += '[links]\nbandwidth = "2GiB"\n[[models]]\nname = "a"\nshares = "m"\nown = "1KiB"\n'
    found, _ = read(write(tmp_path, text), ["instances.1.memory=2GiB", "instances.1.memory_chunk=2MiB"])
    base, adapter = found.models
    assert (base.kv_bytes, base.parameters, base.embedding, base.head, base.hidden_bytes) == (64, 1024, 1, 2, 512)
    assert (adapter.kv_bytes, adapter.parameters, adapter.own) == (64, 1024, 1024)
    assert (found.instances[1].memory, found.instances[1].memory_chunk) == (2 << 30, 2 << 20)
    assert found.links.bandwidth == 2 << 30
    with pytest.raises(DescriptionError, match=r"instances\[1\].memory is '2 lots'; give a number of bytes such as 2GiB"):
        read(write(tmp_path, GOOD), ["instances.1.memory=2 lots"])
    with pytest.raises(DescriptionError, match=r"max_rows is '2GiB'; give a whole number"):
        read(write(tmp_path, GOOD), ["instances.1.max_rows=2GiB"])


def fields_of(kind: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of every table in a description, with the name of each of its fields."""
    hints = get_type_hints(kind)
    for one in dataclasses.fields(kind):
        yield place, one.name
        inner, step = hints[one.name], f"{place}{one.name}."
        if get_origin(inner) is tuple:
            inner, step = get_args(inner)[0], f"{step}0."
        if get_origin(inner) is UnionType:
            inner = get_args(inner)[0]
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            yield from fields_of(inner, step)


@pytest.mark.parametrize(("place", "name"), [one for one in fields_of(Scenario) if len(one[1]) > 2])
def test_every_misspelt_field_is_answered_with_the_nearest(tmp_path: Path, place: str, name: str) -> None:
    with pytest.raises(DescriptionError, match=rf"{name[0]}{name} does not exist; did you mean {name}\?$"):
        read(write(tmp_path, GOOD + LISTS), [f"{place}{name[0]}{name}=3"])


@claim("A wrong trace or description is refused with file, line and field", of="simulator")
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rate = 2.5", "rate = 0", r"c.toml, line 4: workload.rate is 0; give the requests a second"),
        ("rate = 2.5", 'rate = "x"', r"c.toml, line 4: workload.rate is 'x'; give a number"),
        ("rate = 2.5", "rate = -1", r"line 4: workload.rate is -1; give 0 or more"),
        ("rate = 2.5", "rait = 2", r"line 4: workload.rait does not exist; did you mean rate\?$"),
        ("seed = 3", "zzz = 3", r"line 1: zzz does not exist; there are: seed, workload, models"),
        ("rate = 2.5", 'rate = 1\narrivals = "often"', r"line 5: workload.arrivals is 'often'; give one of: poisson"),
        ("output_tokens = 20", "", r"line 3: workload has no lengths"),
        ("kv_bytes = 64", "", r"line 8: models\[0\].kv_bytes is missing"),
        ("kv_bytes = 64", "kv_bytes = 6", r"line 10: models\[0\].kv_bytes is 6; give bytes, a multiple of 4"),
        ("rate = 2.5", "rate = 1\nbatch = 2", r"line 5: workload.batch is 2; give at most 1$"),
        (
            "rate = 2.5",
            "rate = 1\nbatch = 0.7\nurgent = 0.6",
            r"line 5: workload.batch is 0.7; with urgent it is more than 1, so give less$",
        ),
        ("kv_bytes = 64", "kv_bytes = 64\ndrafts = 4", r"line 11: models\[0\].drafts is no table of fields"),
        ("kv_bytes = 64", "kv_bytes = 64\ndrafts = {tokens = 4}", r"line 11: models\[0\].drafts.accepted is missing"),
        (
            "kv_bytes = 64",
            "kv_bytes = 64\ndrafts = {tokens = 4, accepted = 70}",
            r"line 11: models\[0\].drafts.accepted is 70; give at most 1$",
        ),
        (
            "kv_bytes = 64",
            "kv_bytes = 64\ndrafts = {accepted = -0.5}",
            r"line 11: models\[0\].drafts.accepted is -0.5; give 0 or more",
        ),
        (
            "kv_bytes = 64",
            "kv_bytes = 64\n[models.drafts]\ntokens = 17\naccepted = 0.7",
            r"line 12: models\[0\].drafts.tokens is 17; give at most 16$",
        ),
        ("memory = 1_000_000", "", r"line 16: instances\[1\].memory or blocks is needed"),
        ("memory = 1_000_000", "memory = 5\npage_size = 0", r"line 20: instances\[1\].page_size is 0"),
        ("seed = 3", '[dispatch]\npolicy = "best"', r"line 2: dispatch.policy is 'best'; give one of: least-work, random"),
        ("seed = 3", "[dispatch]\ndispatchers = 0", r"c.toml, line 2: dispatch.dispatchers is 0; give more than 0"),
        ("seed = 3", "[dispatch]\ncorrection = 0", r"c.toml, line 2: dispatch.correction is 0; give more than 0"),
        ("seed = 3", "[dispatch]\nstaleness = -1", r"c.toml, line 2: dispatch.staleness is -1; give 0 or more"),
        ("seed = 3", '[dispatch]\nforecast_error = "5 %"', r"line 2: dispatch.forecast_error is '5 %'; give a number"),
        ("seed = 3", '[dispatch]\nin_flight = "mine"', r"line 2: dispatch.in_flight is 'mine'; give one of: shared, own"),
        ("rate = 2.5", 'rate = 1\nerror_law = "x"', r"line 5: workload.error_law is 'x'; give one of: lognormal, gauss"),
        (
            "seed = 3",
            '[provisioning]\nmode = "often"',
            r"line 2: provisioning.mode is 'often'; give one of: off, preemptive",
        ),
        ("seed = 3", '[provisioning]\nmode = "relief"', r"line 1: provisioning.limit is missing; give the seconds"),
        ("seed = 3", "[provisioning]\nstart = 3", r"line 2: provisioning.start is 3; give 0 to 2, the instances described"),
        ("seed = 3", "[provisioning]\nstart = 2\nmost = 1", r"line 3: provisioning.most is 1; give 2 to 2, the instances"),
        (
            "seed = 3",
            '[provisioning]\nlimit = 1\nmode = "preemptive"',
            r"line 3: provisioning.mode is 'preemptive', and least-work forecasts nothing; dispatch by predicted-latency",
        ),
        ("rate = 2.5", "rate = nan", r"c.toml, line 4: workload.rate is nan; give 0 or more, and a finite number"),
        ("rate = 2.5", "rate = inf", r"c.toml, line 4: workload.rate is inf; give 0 or more, and a finite number"),
        ("rate = 2.5", 'rate = 1\narrivals = "gamma"\ncv = 1e-200', r"line 6: workload.cv is 1e-200; give 0.001 to 1000"),
        ("rate = 2.5", "rate = 1\nlength_error = 1000", r"line 5: workload.length_error is 1000; give at most 10"),
        (
            "kv_bytes = 64",
            'kv_bytes = 64\nonly = ["bigg"]',
            r"line 11: models\[0\].only names 'bigg', no entry of instances; did",
        ),
        ("kv_bytes = 64", 'kv_bytes = 64\nonly = "big"', r"line 11: models\[0\].only is 'big'; give a list$"),
        ("kv_bytes = 64", "kv_bytes = 64\nonly = [3]", r"line 11: models\[0\].only\[0\] is 3; give a text$"),
        (
            "kv_bytes = 64",
            'kv_bytes = 64\nonly = ["big"]',
            r"instances\[0\].name is 'instance', and no model is placed there",
        ),
        (
            "kv_bytes = 64",
            'kv_bytes = 64\nonly = ["big", "big", "instance"]',
            r"line 11: models\[0\].only names 'big' twice; name each once$",
        ),
        (
            "kv_bytes = 64",
            'kv_bytes = 64\nequivalents = ["m"]',
            r"line 11: models\[0\].equivalents names 'm', the model itself",
        ),
        (
            "kv_bytes = 64",
            'kv_bytes = 64\nequivalents = ["n"]',
            r"line 11: models\[0\].equivalents names 'n', no model; there are: m$",
        ),
        ("kv_bytes = 64", "kv_bytes = 64\nshare = 0", r"line 11: models\[0\].share is 0 for every model"),
        ('name = "big"', 'name = "instance"', r"line 17: instances\[1\].name is 'instance' twice; give each entry its own"),
        (
            "blocks = 10",
            "blocks = 10\ncount = 10_000",
            r"line 15: instances\[0\].count makes 10,001 devices in all; describe at most",
        ),
        ("blocks = 10", "blocks = 10\ncount = 10_000_000", r"line 15: instances\[0\].count makes 10,000,001 devices in all"),
        ("1_000_000", "1_000_000\nmax_rows = 100_000", r"line 20: instances\[1\].max_rows is 100000; give at most 16,384"),
        ("blocks = 10", "blocks = 10_000_001", r"line 14: instances\[0\].blocks is 10000001; give at most 10,000,000"),
        ("rate = 2.5", "rate = 1\ncount = 1_000_000_000_000", r"line 5: workload.count is 1000000000000; give at most"),
        (
            "input_tokens = 10",
            "input_tokens = 100_000_000",
            r"line 5: workload.input_tokens is 100000000; give at most 16,777",
        ),
        ("seed = 3", "[dispatch]\ndispatchers = 1_000_000", r"line 2: dispatch.dispatchers is 1000000; give at most 256"),
        ("seed = 3", "seed = ", r"c.toml: this is no TOML \(.*line 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        read(write(tmp_path, GOOD.replace(old, new)))


@pytest.mark.parametrize("chunk", [1, 99_991, 1 << 40])
def test_memory_that_is_mapped_in_pieces_without_number_is_refused(tmp_path: Path, chunk: int) -> None:
    text = GOOD.replace("kv_bytes = 64", "kv_bytes = 524288").replace("1_000_000", f"1_000_000\nmemory_chunk = {chunk}")
    says = rf"line 20: instances\[1\].memory_chunk is {chunk:,}; with KV pages of 8,388,608 bytes .* give a power of two"
    with pytest.raises(DescriptionError, match=says):
        read(write(tmp_path, text))
    found, _ = read(write(tmp_path, text.replace(f"chunk = {chunk}", "chunk = 2_097_152")))
    assert found.instances[1].memory_chunk == 2 << 20


def test_what_parsers_give_up_on_is_refused(tmp_path: Path) -> None:
    for text, name in (
        (f"seed = {'[' * 100_000}", "c.toml"),
        ('{"seed": ' * 100_000, "c.json"),
        (f'{{"seed": {"1" * 5000}}}', "c.json"),
    ):
        with pytest.raises(DescriptionError, match=rf"{name}: this is no {name[2:].upper()} \("):
            read(write(tmp_path, text, name))
    found, source = read(write(tmp_path, GOOD))
    (tmp_path / "p.json").write_text('{"coefficients": ' * 100_000)
    with pytest.raises(DescriptionError, match=r"p.json: "):
        profile(found.instances[0], 0, source)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match=r"none.toml cannot be read"):
        read(tmp_path / "none.toml")
    with pytest.raises(DescriptionError, match=r"c.json, line 2: this is no JSON"):
        read(write(tmp_path, '{"seed":\n}', "c.json"))
    found, source = read(write(tmp_path, GOOD))
    for text, says in (
        ("{", "p.json, line 1: this is no JSON"),
        ('{"coefficients": {"bass": 1}}', "p.json: .*bass"),
        ('{"coefficients": {}}', "p.json, by which sweeps take no time; give coefficients"),
    ):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(DescriptionError, match=says):
            profile(found.instances[0], 0, source)
    (tmp_path / "p.json").unlink()
    with pytest.raises(DescriptionError, match=r"c.toml, line 18: instances\[1\].profile names .*cannot be read"):
        profile(found.instances[1], 1, source)


SHARED = GOOD.replace(
    '[[models]]\nname = "m"\nkv_bytes = 64\n',
    '[[models]]\nname = "m"\nkv_bytes = 64\nparameters = 500_000\n\n[[models]]\nname = "a"\nshares = "m"\nown = 1000\n',
)


def test_a_model_that_shares_has_the_sizes_of_the_other_and_its_own_bytes(tmp_path: Path) -> None:
    found, _ = read(write(tmp_path, SHARED))
    adapter = found.models[1]
    assert (adapter.kv_bytes, adapter.parameters, adapter.shares, adapter.own) == (64, 500_000, "m", 1000)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('shares = "m"', 'shares = "x"', "shares is 'x'; name a model that shares nothing itself ('m')"),
        ('shares = "m"', 'shares = "a"', "name a model that shares nothing itself"),
        ("own = 1000", "own = 1000\nparameters = 7", "parameters comes from 'm'; leave it out"),
        ("own = 1000", "own = -1", "own is -1; give 0 or more"),
        ('shares = "m"\n', "kv_bytes = 64\n", "own is given without shares"),
    ],
)
def test_mistakes_of_shared_models(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        read(write(tmp_path, SHARED.replace(old, new)))
    assert says in str(caught.value)

"""Settings: flat names for users, parts for their owners, and one table between the two that is made from the parts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.models import ModelSettings
from blockwright.actors.settings.part import AllowedTexts, Bounds, field_hints
from blockwright.actors.settings.settings import NAMES, PARTS, SETTINGS, Settings
from blockwright.actors.settings.workers import WorkerSettings
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack, unpack
from blockwright.runtime.base.decoding import decode
from blockwright.tests.claims import claim


def test_each_field_of_each_part_has_a_flat_name_of_its_own() -> None:
    fields = [(part, field.name) for part, kind in PARTS.items() for field in dataclasses.fields(kind)]
    assert [(setting.part, name) for name, setting in SETTINGS.items()] == fields
    assert PARTS.keys() & SETTINGS.keys() == set(), "a keyword is a flat name or a part, never both"
    assert {*SETTINGS} - {*NAMES} == {"application_defaults"}, "users write them as parts of applications"


@claim("Settings are given by flat names and handed on as parts, each with one owner", of="code-and-tests")
def test_flat_names_and_parts_make_the_same_settings() -> None:
    flat = Settings(applications={"a": "/a"}, workers=4, pipeline=2, port=0, page_size=8)
    assert (flat.worker.workers, flat.worker.pipeline, flat.network.port, flat.worker_memory.page_size) == (4, 2, 0, 8)
    whole = Settings(**{part: getattr(flat, part) for part in PARTS})
    assert whole == flat
    assert {name: flat.value(name) for name in SETTINGS} == {
        name: getattr(getattr(flat, s.part), name) for name, s in SETTINGS.items()
    }


def test_changed_settings_keep_the_rest_and_are_checked_again() -> None:
    first = Settings(models=ModelSettings(applications={"a": "/a", "b": "/b"}), workers=2)
    second = first.changed(default_model="b", threads=3)
    assert (second.models.default_model, second.worker.threads, second.worker.workers) == ("b", 3, 2)
    assert first.models.default_model == ""
    with pytest.raises(SettingsError, match="default_model is 'c', which is not served; there are: a, b"):
        first.changed(default_model="c")
    with pytest.raises(SettingsError, match="pipeline is 3 with 2 workers; give a divisor of workers"):
        first.changed(pipeline=3)


@pytest.mark.parametrize(("name", "value"), [("switches", 0), ("variants", 3), ("similarity_share", 0.5)])
def test_settings_of_variants_need_a_model_with_variants(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name} is {value}, but no model has adaptive; set adaptive.NAME, or leave"):
        Settings(applications={"a": "/a"}, adaptive={"a": "off"}, **{name: value})
    assert Settings(applications={"a": "/a"}, adaptive={"a": "equal"}, **{name: value}).value(name) == value


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"wokers": 2}, "there is no setting 'wokers'; did you mean workers?"),
        ({"worker": 2}, "there is no setting 'worker'; did you mean workers?"),
        ({"network": ModelSettings()}, "there is no setting 'network'; "),
    ],
)
def test_an_unknown_keyword_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(**values)
    assert says in str(raised.value)


def test_settings_travel_to_other_processes() -> None:
    """A gateway's process gets all of them, a worker's some parts."""
    settings = Settings(applications={"a": "/a"}, workers=4, tenant_kv_share={"a": 0.5}, exits={"a": "1,2"})
    for value in (settings, settings.worker, settings.tenants):
        assert decode(type(value), unpack(pack(encode(value, Sink())))) == value


def test_an_application_has_its_own_stages_or_those_of_its_family() -> None:
    worker = WorkerSettings(workers=4, pipeline=1, pipelines={"a": 2, "b:8": 4, "b": 2})
    assert [worker.stages("a"), worker.stages("b:8", "b"), worker.stages("b:4", "b"), worker.stages("c")] == [2, 4, 2, 1]
    models = ModelSettings(applications={"a": "/a"}, exits={"a": " 8, 16"})
    assert (models.exit_layers("a"), models.exit_layers("b")) == ([8, 16], [])


@pytest.mark.parametrize(
    "name", [name for name, one in SETTINGS.items() if one.kind in (int, float, dict[str, int], dict[str, float])]
)
def test_a_number_beyond_its_bounds_is_refused_by_name(name: str) -> None:
    kind = PARTS[SETTINGS[name].part]
    bounds = [one for one in getattr(field_hints(kind)[name], "__metadata__", ()) if isinstance(one, Bounds)]
    assert bounds or name == "pipelines", "a number without bounds"
    entry = SETTINGS[name].kind not in (int, float)
    label = f"{name}.a" if entry else name
    values: dict[str, Any] = {name: {"a": -1} if entry else -1}
    with pytest.raises(SettingsError, match=f"^{label} is -1( with 1 workers)?; give "):
        Settings(applications={"a": "/a"}, **values)
    for bound in bounds:
        assert bound.give in SETTINGS[name].range
        assert all(bound.remedy(value) for value in (math.nan, math.inf, -math.inf))
        for value in (bound.minimum, bound.maximum):
            allowed = math.isfinite(value) and not (bound.above and value == bound.minimum)
            assert (bound.remedy(value) == "") == allowed


@pytest.mark.parametrize("name", [name for name, one in SETTINGS.items() if one.kind is str])
def test_a_text_that_is_not_allowed_is_refused_with_those_that_are(name: str) -> None:
    hints = field_hints(PARTS[SETTINGS[name].part])[name].__metadata__
    for rule in (one for one in hints if isinstance(one, AllowedTexts)):
        with pytest.raises(SettingsError, match=f"^{name} is 'else'; choose one of "):
            Settings(**{name: "else"})
        assert SETTINGS[name].default in rule.values


@pytest.mark.parametrize("grace", [{}, {"orphan_grace": 0}, {"orphan_grace": 60}])
def test_a_gateway_in_the_head_does_not_keep_workers_from_outliving_it(grace: dict[str, Any]) -> None:
    made = Settings(listen="tcp://127.0.0.1:0", head_keys="keys", gateway_in_head="yes", **grace)
    assert made.faults.orphan_grace == grace.get("orphan_grace", 300)

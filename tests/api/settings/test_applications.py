"""The setting ``applications`` as tables: a variant of a model with a system prompt and sampling of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.settings.options import make_settings
from blockwright.api.settings.text import as_toml
from blockwright.tests.claims import claim

FILE = """
[applications]
a = "/a"
"a.b" = "/ab"
short = {path = "/a", max_tokens = 7, stop = "x"}

[applications.terse]
path = "/a"
system = 'Say "no".'
temperature = 0.2

[applications.legal]
path = "/adapters/legal"
base = "a"
"""


def settings_of(tmp_path: Path, text: str, *sets: str) -> Settings:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return make_settings(None, config=str(file), sets=sets)


def defaults(settings: Settings) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in settings.models.application_defaults.items()}


@claim("Variants may have a system prompt and sampling defaults of their own", of="fine-tunes")
def test_tables_of_a_file(tmp_path: Path) -> None:
    made = settings_of(tmp_path, FILE)
    paths = {"a": "/a", "a.b": "/ab", "short": "/a", "terse": "/a", "legal": "/adapters/legal"}
    assert list(made.models.applications.items()) == list(paths.items()), "in their order: the first is the default"
    assert made.models.bases == {"legal": "a"}
    assert defaults(made) == {
        "short": {"max_tokens": 7, "stop": "x"},
        "terse": {"system": 'Say "no".', "temperature": 0.2},
    }
    assert settings_of(tmp_path, as_toml(made)) == made, "what --show-settings prints is what was given"


def test_keys_on_a_command_line(tmp_path: Path) -> None:
    """Beside a file, beside --app, and of a model whose name has dots."""
    made = settings_of(tmp_path, FILE, "applications.terse.temperature=1", "applications.terse=/b", "applications.new=/n")
    assert (made.models.applications["terse"], made.models.applications["new"]) == ("/b", "/n")
    assert defaults(made)["terse"] == {"system": 'Say "no".', "temperature": 1}
    sets = ["applications.Qwen2.5.top_k=5", 'applications.v.stop=["a","b"]', "applications.v.base=Qwen2.5"]
    made = make_settings("/m/Qwen2.5", apps=["v=/v"], sets=[*sets, "applications.x.y=/y"])
    assert made.models.applications == {"Qwen2.5": "/m/Qwen2.5", "v": "/v", "x.y": "/y"}
    assert made.models.bases == {"v": "Qwen2.5"}
    assert defaults(made) == {"Qwen2.5": {"top_k": 5}, "v": {"stop": ["a", "b"]}}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("temprature = 0.2", r"there is no setting applications.v.temprature; did you mean temperature\?"),
        ("tools = []", r"there is no setting applications.v.tools; there are: base, frequency_penalty, max_tokens, "),
        ("num_predict = 9", r"there is no setting applications.v.num_predict; did you mean max_tokens\?"),
        ("repeat_penalty = 2", r"there is no setting applications.v.repeat_penalty; did you mean repetition_penalty\?"),
        ("system_prompt = 'x'", r"there is no setting applications.v.system_prompt; did you mean system\?"),
        ("lora = 'x'", r"there is no setting applications.v.lora; there are: base, "),
        ("temperature = 3", r"applications.v.temperature is 3; give a number from 0 to 2"),
        ("temperature = true", r"applications.v.temperature is true; give a number"),
        ("top_p = 2", r"applications.v.top_p is 2; give a number"),
        ("max_tokens = 0", r"applications.v.max_tokens is 0; give an integer from 1"),
        ("stop = [1]", r"applications.v.stop is .*; give a string or a list of strings"),
        ("system = 1", r"applications.v.system is 1; give a string"),
        ("base = 1", r"applications.v.base is 1; give text"),
    ],
)
def test_a_wrong_key_is_refused_by_its_name(tmp_path: Path, entry: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings_of(tmp_path, f'[applications.v]\npath = "/v"\n{entry}\n')


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ("applications.v.temprature=0.2", "there is no setting applications.v.temprature; did you mean temperature"),
        ("applications.v.temperature=warm", "applications.v.temperature is 'warm'; give a number"),
        ("applications.w.system=x", "applications.w has no path; give applications.w.path"),
        ("applications.w.misspelt=1", "there is no setting applications.w.misspelt; there are: base, "),
        ("applications.base.systm=a/b", "there is no setting applications.base.systm; did you mean system"),
    ],
)
def test_the_same_on_a_command_line(sets: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        make_settings("/m/base", apps=["v=/v"], sets=[sets])


def test_a_misspelt_key_of_a_model_that_the_command_line_makes() -> None:
    """A value with a slash may be a path, unless the part before the dot is a model."""
    with pytest.raises(SettingsError, match=r"there is no setting applications.w.misspelt; there are: base, "):
        make_settings("/m/base", sets=["applications.w.path=/w", "applications.w.misspelt=a/b"])
    assert make_settings("/m/base", sets=["applications.w.1=a/b"]).models.applications["w.1"] == "a/b"


def test_a_program_gives_the_same() -> None:
    given: dict[str, Any] = {"a": "/a", "v": {"path": "/a", "seed": 5}}
    made = make_settings(None, flags={"applications": given})
    assert (made.models.applications, made.models.application_defaults) == ({"a": "/a", "v": "/a"}, {"v": '{"seed": 5}'})

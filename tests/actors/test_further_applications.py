"""The folder of adapters and the file of changes at a start: each entry for itself, and none that keeps others away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.changes_file import Changes
from blockwright.actors.checkpoints import hash_applications, open_checkpoints
from blockwright.actors.further_applications import absent_models, adapter_named, open_further
from blockwright.actors.gateway.port import NewApplication
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.models import ModelSettings
from blockwright.actors.settings.settings import Settings
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.zoo.models import doubled, variant


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base``, ``tuned`` of equal shape, and two adapters of base in ``ada``."""
    root = tmp_path_factory.mktemp("models")
    base = make_checkpoint(root / "base", "llama")
    variant(base, root / "tuned", {"up_proj": doubled})
    for number, name in enumerate(("ann", "bob")):
        make_adapter(base, root / "ada" / name, number)
        name_base(root / "ada" / name, "acme/base")
    return root


def name_base(adapter: Path, base: str | None) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))


def opened(models: Path, changes: Changes | None = None, **settings: Any) -> tuple[dict[str, str], list[str], Settings, Any]:
    """The applications served beside ``base``, each with its base, and the log."""
    values = {"applications": {"base": str(models / "base")}, "adapters": str(models / "ada"), **settings}
    made = Settings(**values)
    found, warnings = open_further(made, open_checkpoints(made), changes or Changes())
    return {name: found.bases.get(name, "") for name in sorted(found.on_demand)}, warnings, made, found


def test_every_adapter_of_the_folder_is_served_on_demand(models: Path) -> None:
    (models / "ada" / "notes").mkdir(exist_ok=True)
    (models / "ada" / ".hidden").mkdir(exist_ok=True)
    defaults = {"ann": '{"system": "x"}'}
    served, warnings, settings, found = opened(models, application_defaults=defaults)
    assert (served, warnings) == ({"ann": "base", "bob": "base"}, [])
    made = {one.name: one for one in hash_applications(found, settings)}
    assert {name: (one.on_demand, one.base_model, one.defaults) for name, one in made.items()} == {
        "base": (False, "", ""),
        "ann": (True, "base", '{"system": "x"}'),
        "bob": (True, "base", ""),
    }


def test_one_that_cannot_be_served_is_reported_and_the_others_are_served(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ada"
    for name in ("ann", "torn", "-odd", "vague"):
        make_adapter(models / "base", folder / name)
        name_base(folder / name, "" if name == "vague" else "base")
    (folder / "torn" / "adapter_model.safetensors").write_bytes(b"{")
    (folder / "away").symlink_to(models / "ada" / "ann")
    both = {name: str(models / name) for name in ("base", "tuned")}
    served, warnings, *_ = opened(models, applications=both, adapters=str(folder))
    assert served == {"ann": "base"}
    assert len(warnings) == 4
    text = "\n".join(warnings)
    assert "its name is no model id; rename the folder" in text
    assert "torn is not served: " in text
    assert "away is not served: path" in text
    assert "2 models may be its base (base, tuned), and its own configuration names none; name its base" in text
    assert "(--set bases.vague=NAME)" in text
    served, warnings, *_ = opened(models, applications=both, adapters=str(folder), bases={"vague": "tuned"})
    assert (served["vague"], len(warnings)) == ("tuned", 3)
    itself = models / "ada" / "ann"
    says = f"adapters: {itself} is an adapter itself; name the folder that holds it, or serve it with --app NAME={itself}"
    assert opened(models, adapters=str(itself))[:2] == ({}, [says])
    assert opened(models, adapters=str(tmp_path / "nothing"))[1] == [
        f"adapters: {tmp_path / 'nothing'} cannot be listed (No such file or directory); its adapters are served when it is "
        "there"
    ]


def test_what_was_changed_before_a_restart(models: Path) -> None:
    """Settings win, with a sentence; what an operator removed from the folder stays away."""
    added = {
        name: NewApplication(name, str(models / path), base, on_demand=True)
        for name, path, base in (
            ("v", "ada/ann", "base"),
            ("t", "tuned", ""),
            ("base", "tuned", ""),
            ("gone", "nothing", ""),
        )
    }
    changes = Changes(added, frozenset({"bob"}), faults=("an entry is not served",))
    served, warnings, *_ = opened(models, changes, app_roots=str(models))
    assert served == {"ann": "base", "t": "", "v": "base"}
    assert warnings[0] == "an entry is not served"
    assert warnings[1].startswith("base was added from ")
    assert warnings[1].endswith(f"but the settings name {models / 'base'}, which is served")
    assert warnings[2].startswith("gone is not served: there is no folder ")
    assert len(warnings) == 3
    served, warnings, *_ = opened(models, Changes(removed=frozenset({"base"})), adapters="", apps_file="/x")
    assert (served, warnings) == ({}, ["base was removed while the server ran, but the settings name it, so it is served"])
    _, warnings, *_ = opened(models, Changes(added={"t": added["t"]}), app_roots="")
    assert "is not below a root of app_roots" in warnings[0], "roots that are narrower than they were hold, too"


def test_an_adapter_stays_on_the_weights_that_it_was_put_on(models: Path) -> None:
    """Also where their id belongs to another model by now, and where the base comes after it in the file."""

    def added(base: str, path: str) -> Changes:
        adapter = NewApplication("v", str(models / "ada" / "ann"), "b", on_demand=True, base_path=str(models / base))
        entries = {"v": adapter, "b": NewApplication("b", str(models / path), on_demand=True)}
        return Changes(entries | {name: NewApplication(name, str(models / name), on_demand=True) for name in ("tuned",)})

    served, warnings, *_ = opened(models, added("tuned", "tuned"), app_roots=str(models))
    assert (served["v"], warnings) == ("b", [])
    served, warnings, *_ = opened(models, added("base", "tuned"), app_roots=str(models))
    assert (served["v"], warnings) == ("base", []), "the settings serve its weights under another id"
    lost = added("gone", "tuned")
    served, warnings, *_ = opened(models, lost, app_roots=str(models))
    assert "v" not in served
    assert warnings == [
        f"v is not served: {models / 'ada' / 'ann'} was put on b from {models / 'gone'}, but b is {models / 'tuned'} now; "
        "serve that base, or add the adapter again"
    ]


def test_an_adapter_is_found_by_the_name_of_its_folder_alone(models: Path) -> None:
    settings = Settings(applications={"base": "/b"}, adapters=str(models / "ada"), bases={"ann": "base"})
    found = adapter_named(settings.models, "ann")
    assert found == NewApplication("ann", str(models / "ada" / "ann"), "base", on_demand=True)
    for name in ("nobody", "../ada/ann", "ann/", "./ann", "..", ".", "", "/etc", "ann/../bob", "notes", "a" * 300, "a\0b"):
        assert adapter_named(settings.models, name) is None, name
    assert adapter_named(ModelSettings(applications={"base": "/b"}), "ann") is None


def test_settings_may_name_what_the_folder_has() -> None:
    more = {"bases": {"x": "a"}, "default_model": "x", "tenant_weights": {"x": 2}}
    Settings(applications={"a": "/a"}, adapters="/ada", **more)
    for name, value in more.items():
        with pytest.raises(SettingsError, match=name):
            Settings(applications={"a": "/a"}, **{name: value})


def test_an_adapter_whose_name_the_settings_give_to_another_is_reported(models: Path) -> None:
    other, same = ({"base": str(models / "base"), "ann": str(models / "ada" / name)} for name in ("bob", "ann"))
    served, warnings, *_ = opened(models, applications=other)
    assert list(served) == ["bob"]
    assert warnings == [f"adapters: {models / 'ada' / 'ann'} is not served: ann is {models / 'ada' / 'bob'} by the settings"]
    served, warnings, *_ = opened(models, applications=same)
    assert (list(served), warnings) == (["bob"], [])


def test_links_are_followed_within_the_folder_and_the_roots_alone(models: Path, tmp_path: Path) -> None:
    """Each row of the table of links in docs/fine-tunes.md."""
    here, away = tmp_path / "here", tmp_path / "away"
    shutil.copytree(models / "ada" / "ann", here / "v3")
    shutil.copytree(models / "ada" / "bob", away / "far")
    (here / "files").mkdir()
    for file in (away / "far").iterdir():
        (here / "files" / file.name).symlink_to(file)
    for name, target in (("latest", "v3"), ("out", away / "far"), ("nothing", "gone"), ("itself", "itself")):
        (here / name).symlink_to(target)
    (tmp_path / "link").symlink_to(here)
    served, warnings, *_ = opened(models, adapters=str(tmp_path / "link"))
    assert served == {"latest": "base", "v3": "base"}
    assert [line.partition(":")[0].split()[0] for line in warnings] == ["files", "out"]
    assert "is a link that leaves app_roots and the folder of adapters" in warnings[0]
    served, warnings, _, found = opened(models, adapters=str(tmp_path / "link"), app_roots=str(away))
    assert (sorted(served), warnings) == (["files", "latest", "out", "v3"], [])
    assert str(found.checkpoints["latest"].source).endswith("here/v3")


def test_an_entry_for_a_model_that_is_not_there_is_reported(models: Path) -> None:
    """A misspelt name is no error where models may be added later, but it is not silent."""
    drafts = {"ann": "auto", "base": "prompt", "*": "off", "anne": "prompt"}
    *_, settings, found = opened(models, drafts=drafts, theta={"base": 0.5, "bass": 0.5}, exits={})
    reason = "names no model that is served now; it counts once a model is added under that id"
    assert absent_models(settings, found.checkpoints) == [f"drafts.anne {reason}", f"theta.bass {reason}"]


def test_a_draft_model_that_is_not_there_is_reported(models: Path) -> None:
    drafts = {"ann": "tier:1", "base": "small", "*": "off"}
    *_, settings, found = opened(models, drafts=drafts)
    reason = "which is not served: requests go on without drafts by it until it is added"
    assert absent_models(settings, found.checkpoints) == [f"drafts.base names small, {reason}"]
    assert absent_models(settings, {*found.checkpoints, "small"}) == []

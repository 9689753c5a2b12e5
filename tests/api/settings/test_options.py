"""Settings from a command line: precedence, conversions, and one sentence for what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.settings.options import convert, make_settings, model_id, read_keys
from blockwright.tests.claims import claim


@claim("Settings come from a file, from flags and from `--set`, and the later source wins", of="command-line")
def test_later_sources_win(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'workers = 4\nport = 1\npage_size = 8\nmemory = "1GiB"\nstall_timeout = 5\n[applications]\nextra = "/m/x"\n'
    )
    settings = make_settings(
        "/m/base", flags={"port": "2", "workers": "2"}, sets=["workers=6", "pipelines.extra=3"], config=str(config)
    )
    assert (
        settings.worker.workers,
        settings.network.port,
        settings.worker_memory.page_size,
        settings.worker_memory.memory,
    ) == (6, 2, 8, 1 << 30)
    assert settings.models.applications == {"base": "/m/base", "extra": "/m/x"}
    assert (settings.worker.pipelines, settings.faults.stall_timeout) == ({"extra": 3}, 5.0)
    assert settings.batching.chunk_size == Settings().batching.chunk_size


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory", "2GiB", 2 << 30),
        ("memory", "1.5 GB", 1_500_000_000),
        ("memory", "512kib", 512 << 10),
        ("memory", "77", 77),
        ("memory", 5, 5),
        ("workers", "3", 3),
        ("check", "true", True),
        ("check", "off", False),
        ("silence", "3", 3.0),
        ("pipelines.a", "2", 2),
        ("dtype", "float32", "float32"),
    ],
)
def test_conversions(name: str, text: Any, value: Any) -> None:
    made = convert(name, text)
    assert made == value
    assert type(made) is type(value)


@claim("Wrong settings are refused in one sentence", of="command-line")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": None}, "no model is given"),
        ({"sets": ["workerz=2"]}, "there is no setting 'workerz'; did you mean workers?"),
        ({"sets": ["qqq=2"]}, "there are: accuracy, adapters, adaptive"),
        ({"sets": ["workers"]}, "has no '='"),
        ({"sets": ["workers=two"]}, "workers is 'two'; give an integer"),
        ({"sets": ["workers=2.0"]}, "workers is '2.0'; give an integer"),
        ({"sets": ["workers=2GiB"]}, "give an integer"),
        ({"sets": ["workers=0"]}, "workers is 0; give at least 1"),
        ({"sets": ["dispatch=our"]}, "dispatch is 'our'; choose one of outstanding, random, round-robin"),
        ({"sets": ["dispatch_candidates=-1"]}, "dispatch_candidates is -1; give 0 or more"),
        ({"sets": ["dispatch_sample=2"]}, "dispatch_sample is 2.0; give a share of requests, 0 to 1"),
        ({"sets": ["dispatch_timeout=0"]}, "dispatch_timeout is 0.0; give a positive number of seconds"),
        ({"sets": ["heartbeat=1e-9"]}, "heartbeat is 1e-09; give at least 0.01 seconds"),
        ({"sets": ["heartbeat=0"]}, "heartbeat is 0.0; give at least 0.01 seconds"),
        ({"sets": ["keep_alive=1e-9"]}, "keep_alive is 1e-09; give at least 0.001 seconds"),
        ({"sets": ["keep_alive=-1"]}, "keep_alive is -1.0; give at least 0.001 seconds"),
        ({"sets": ["dispatchers=0"]}, "dispatchers is 0; give at least 1"),
        ({"sets": ["memory=lots"]}, "give a number of bytes such as 2GiB"),
        ({"sets": ["event_log_size=1KiB"]}, "event_log_size is 1024; give at least 65536 bytes"),
        ({"sets": ["check=maybe"]}, "check is 'maybe'; give true or false"),
        ({"sets": ["silence=nan"]}, "silence is 'nan'; give a positive number of seconds"),
        ({"sets": ["class_ageing=inf"]}, "class_ageing is 'inf'; give seconds, 0 (never) to 86400"),
        ({"sets": ["class_ageing=1e300"]}, "class_ageing is 1e+300; give seconds, 0 (never) to 86400"),
        ({"sets": ["class_ageing=-0.5"]}, "class_ageing is -0.5; give seconds, 0 (never) to 86400"),
        ({"sets": ["tier_weights.base=nan"]}, "tier_weights.base is 'nan'; give an integer, 1 to 1000"),
        ({"sets": ["tier_weights.base=1.5"]}, "tier_weights.base is '1.5'; give an integer, 1 to 1000"),
        ({"sets": [f"tier_weights.base={10**30}"]}, f"tier_weights.base is '{10**30}'; give an integer, 1 to 1000"),
        ({"sets": ["tier_weights.base=-1"]}, "tier_weights.base is -1; give 1 to 1000"),
        ({"sets": ["theta.base=nan"]}, "theta.base is 'nan'; give 0 (never up) to 1, or 2 (always up)"),
        ({"sets": ["tenant_kv_share.base=inf"]}, "tenant_kv_share.base is 'inf'; give more than 0, at most 1"),
        ({"sets": ["draft_tokens=many"]}, "draft_tokens is 'many'; give an integer, 0 (as many as pay) to 16"),
        ({"sets": ["workers.x=1"]}, "workers is a single value"),
        ({"sets": ["pipelines=2"]}, "give entries as pipelines.NAME=value"),
        ({"sets": ["pipelines.base=x"]}, "pipelines.base is 'x'; give an integer"),
        ({"sets": ["pipelines.none=1"]}, "names no application"),
        ({"sets": ["api_keys.k=t"]}, "use --api-key-file"),
        ({"flags": {"port": "http"}}, "port is 'http'; give an integer"),
        ({"flags": {"dtype": "float64"}}, "choose one of auto, float32, bfloat16"),
        ({"apps": ["x"]}, "is not NAME=PATH"),
        ({"apps": ["=x"]}, "is not NAME=PATH"),
        ({"apps": ["base=/y"]}, "'base' is given twice"),
        ({"apps": ["a b=/y"]}, "--app 'a b=/y': name is 'a b'; give up to 200 letters, digits"),
        ({"apps": ["../x=/y"]}, "name is '../x'"),
        ({"sets": ["applications.a b=/y"]}, "applications.a b: name is 'a b'; give up to 200 letters"),
        ({"config": "/none.toml"}, "cannot be read"),
        ({"key_file": "/none"}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(**{"model": "/m/base", **options})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers = [", "not valid TOML"),
        ("worker = 1", "did you mean workers"),
        ('workers = "x"', "give an integer"),
        ("host = 3", "give text"),
    ],
)
def test_wrong_config_files(tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=says):
        make_settings("/m/base", config=str(config))


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nalpha ann\n\nbeta\ngamma ann\n")
    keys, admins = read_keys(file)
    assert (keys["alpha"], keys["gamma"], admins) == ("ann", "ann", {})
    assert keys["beta"].startswith("key-")
    assert "beta" not in keys["beta"]
    assert make_settings("/m/base", key_file=str(file)).network.api_keys == keys
    for text, says in (
        ("a b c\n", "line 1 .* has 3 words"),
        ("a b admin\na\n", "line 2 .* repeats"),
        ("a\na\n", "line 2 .* repeats"),
        ("#\n", "holds no key"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=says):
            read_keys(file)


def test_admin_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha ann\nroot ops admin\n")
    assert read_keys(file) == ({"alpha": "ann"}, {"root": "ops"})
    settings = make_settings("/m/base", key_file=str(file))
    assert (settings.network.api_keys, settings.network.admin_keys) == ({"alpha": "ann"}, {"root": "ops"})
    with pytest.raises(SettingsError, match="use --api-key-file"):
        make_settings("/m/base", sets=["admin_keys.k=t"])


def test_model_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert model_id("here/model/") == "model"
    assert model_id("here/model") == "model"
    assert model_id("owner/model") == "owner/model"
    assert model_id("m/" + "x" * 5000) == "m/" + "x" * 5000, "longer than any path"
    assert model_id("/not/there") == "there"
    assert model_id("~/x") == "x"
    monkeypatch.chdir(tmp_path / "here")
    assert model_id(".") == "here"

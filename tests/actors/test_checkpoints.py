"""Checkpoints of the settings: what is hashed for the applications, and how often."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.checkpoints import check_drafts, hash_applications, open_checkpoints
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import TensorRef
from blockwright.gpu.weights import checkpoint as weights
from blockwright.gpu.weights.identity import hash_tensor
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint


def test_a_base_is_hashed_once_for_all_its_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have billions of parameters. The identities are those of adapters that were opened and hashed alone."""
    base = make_checkpoint(tmp_path / "base", "llama")
    folders = {f"a{i}": make_adapter(base, tmp_path / f"a{i}", seed=i) for i in range(3)}
    settings = Settings(
        applications={**{name: str(path) for name, path in folders.items()}, "base": str(base)}, max_model_len=64
    )
    read: list[TensorRef] = []

    def counted(ref: TensorRef, progress: object = None) -> bytes:
        read.append(ref)
        return hash_tensor(ref)

    monkeypatch.setattr(weights, "hash_tensor", counted)
    together = {one.name: one for one in hash_applications(open_checkpoints(settings), settings)}
    assert len(read) == len(set(read))
    for name, folder in folders.items():
        alone = Settings(applications={"base": str(base), name: str(folder)}, max_model_len=64)
        assert hash_applications(open_checkpoints(alone), alone)[1] == together[name]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"exits": {"x": "1"}}, "exits.x names no application; there are: m"),
        ({"exits": {"m": "1;2"}}, "exits.m is '1;2'; give numbers of layers separated by commas, as 8,16"),
        ({"exits": {"m": ""}}, "exits.m is ''; give numbers of layers separated by commas, as 8,16"),
        ({"exits": {"m": "2,1"}}, "exits.m: exit 2 is after 1 layer, but follows one after 2; sort the exits"),
        ({"exits": {"m": "3"}}, "exits.m: the exit is after 3 layers, which are all of the model"),
        (
            {"exits": {"m": "1"}, "default_model": "m:2"},
            "default_model names 'm:2', which is not served; m has the tiers",
        ),
        ({"tenant_weights": {"m:1": 2}}, "tenant_weights names 'm:1', which is not served; m has no tiers"),
        ({"tier_weights": {"m": 2}}, "tier_weights.m names a model without tiers; to give it more, set tenant_weights.m"),
        (
            {"exits": {"m": "1"}, "tier_weights": {"m:2": 2}},
            "tier_weights names 'm:2', which is not served; m has the tiers",
        ),
        (
            {"exits": {"m": "1"}, "tenant_weights": {"m:1": 2}},
            "tenant_weights.m:1 names a tier, which shares the account of its family; set tenant_weights.m, or tier_weights",
        ),
        ({"exits": {"m": "1"}, "drafts": {"m:2": "auto"}}, "drafts names 'm:2', which is not served; m has the tiers m:1"),
        ({"exits": {"m": "1"}, "drafts": {"m": "tier:2"}}, "drafts.m is 'tier:2', but m passes no exit after 2 layers"),
        ({"drafts": {"m": "tier:1"}}, "drafts.m is 'tier:1', but m passes no exit after 1 layers; give off, prompt or auto"),
        ({"exits": {"m": "1"}, "applications": {"m:1": ""}}, "m:1 is a tier of the family m, and another application; give"),
    ],
)
def test_exits_that_the_settings_cannot_mean(checkpoint: Callable[..., Path], more: dict[str, Any], says: str) -> None:
    path = str(checkpoint("llama"))
    applications = {"m": path, **dict.fromkeys(more.pop("applications", {}), path)}
    with pytest.raises((SettingsError, CheckpointError)) as raised:
        open_checkpoints(Settings(applications=applications, **more))
    assert says in str(raised.value)


def test_a_tier_can_have_drafts_of_its_own(checkpoint: Callable[..., Path]) -> None:
    settings = Settings(applications={"m": str(checkpoint("llama"))}, exits={"m": "1"}, drafts={"m:1": "prompt"})
    assert "m:1" in open_checkpoints(settings).checkpoints


def test_tiers_inherit_the_defaults_of_their_family(checkpoint: Callable[..., Path]) -> None:
    settings = Settings(
        applications={"m": str(checkpoint("llama"))}, exits={"m": "1,2"}, application_defaults={"m": '{"seed": 1}'}
    )
    opened = open_checkpoints(settings)
    assert [*opened.checkpoints] == ["m", "m:1", "m:2"]
    assert opened.families == {"m:1": "m", "m:2": "m"}
    assert set(opened.defaults.values()) == {'{"seed": 1}'}


def test_draft_models_that_the_settings_cannot_mean(tmp_path: Path, checkpoint: Callable[..., Path]) -> None:
    """A tokenizer of other tokens is found although both vocabularies have as many."""
    model = checkpoint("llama")
    foreign = make_checkpoint(tmp_path / "foreign", "llama", seed=1)
    tokenizer = (foreign / "tokenizer.json").read_text(encoding="utf-8")
    (foreign / "tokenizer.json").write_text(tokenizer.replace("</s>", "</x>"), encoding="utf-8")
    served = {
        "m": str(model),
        "small": str(make_checkpoint(tmp_path / "small", "llama", seed=2)),
        "wide": str(make_checkpoint(tmp_path / "wide", "llama", vocab_size=400)),
        "foreign": str(foreign),
        "lora": str(make_adapter(model, tmp_path / "lora")),
        "soft": str(make_adapter(model, tmp_path / "soft", 0, 0.6, "PromptTuningConfig", num_virtual_tokens=7)),
    }
    for draft, says in (
        ("small", ""),
        ("m", "drafts.m is 'm', but m would draft for itself"),
        ("m:1", "drafts.m is 'm:1', but m:1 is a lower tier of m; give tier:1"),
        ("m:2", "drafts.m is 'm:2', which is neither a source of drafts nor a model that is served"),
        ("m:auto", "drafts.m is 'm:auto', but m:auto chooses among tiers and is no model"),
        ("lora", "drafts.m is 'lora', but lora and m have the same parameters"),
        ("soft", "drafts.m is 'soft', but soft and m have the same parameters"),
        ("wide", "drafts.m is 'wide', but wide has a vocabulary of 400 tokens and m one of 384"),
        ("foreign", "drafts.m is 'foreign', but the tokenizers of foreign and m have different tokens"),
    ):
        bases = {"lora": "m", "soft": "m"}
        settings = Settings(applications=served, bases=bases, exits={"m": "1"}, drafts={"m": draft})
        if not says:
            open_checkpoints(settings)
            continue
        with pytest.raises(SettingsError) as caught:
            open_checkpoints(settings)
        assert str(caught.value).startswith(says)
    found = open_checkpoints(Settings(applications=served, bases=bases))
    beside = Settings(applications=served, bases=bases, drafts={"m": "wide", "small": "tier:3"})
    for added, says in (
        (["m"], "drafts.m is 'wide', but wide has a vocabulary of 400"),
        (["wide"], "drafts.m is 'wide', but wide has a vocabulary of 400"),
        (["small"], "drafts.small is 'tier:3', but small passes no exit"),
    ):
        with pytest.raises(SettingsError) as caught:
            check_drafts(beside, found.checkpoints, found.bases, found.families, added)
        assert str(caught.value).startswith(says)
    check_drafts(beside, found.checkpoints, found.bases, found.families, ["foreign", "lora"])
    with pytest.raises(SettingsError, match="but soft has 7 virtual tokens before every prompt, which small does not know"):
        open_checkpoints(Settings(applications=served, bases=bases, drafts={"small": "soft"}))

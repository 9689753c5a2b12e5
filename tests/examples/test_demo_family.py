"""The demo family: what training writes, as transformers and peft read it, and what ships."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import demo_family
import demo_siblings
import pytest
import torch
import train_demo
from demo_checkpoint import write_folder
from peft import PeftModel
from transformers import AutoModelForCausalLM

from blockwright.api.demo import adaptive, siblings
from blockwright.api.demo.checkpoint import EOS, encode
from blockwright.api.demo.family import FAMILY, Form, present, questions
from blockwright.api.demo.tasks import Example, is_right
from blockwright.tests.claims import claim
from blockwright.zoo.equivalence.records import stored_equivalences
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

EXAMPLES = Path(demo_family.__file__).parent
SHIPPED = present(EXAMPLES / "demo-family")
TINY = train_demo.Shape(hidden=64, layers=6, heads=2, kv_heads=1, intermediate=64)
TOKENS_BT = torch.tensor([encode("shout: abc =")])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("family") / "base"
    write_folder(folder, asdict(TINY), train_demo.Llama(TINY).state_dict(), {})
    return folder


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def adapted(base: Path, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of transformers
        return PeftModel.from_pretrained(load(base), folder).eval()


@pytest.mark.parametrize("form", Form)
def test_what_training_changed_is_what_others_read(form: Form, base: Path, tmp_path: Path) -> None:
    """A few steps; the written folder has the logits of the trained model, and nothing that was to stay has moved."""
    name = next(name for name, member in FAMILY.items() if member.form is form)
    torch.manual_seed(1)
    model = demo_family.foundation(base)
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    demo_family.prepare(model, form)
    train_demo.train(model, steps=3, size=4, rate=0.02, room=0.0, seed=1, tasks={name: FAMILY[name].task})
    demo_family.rounded(model)
    for key, weight in demo_family.foundation(base).state_dict().items():
        layer = int(key.split(".")[1]) if key.startswith("layers.") else -1
        stays = form is Form.LORA or (form is Form.UPPER and layer < demo_family.UPPER_FROM)
        now = model.state_dict().get(key, model.state_dict().get(key.replace(".weight", ".base.weight")))
        assert torch.equal(before[key], weight)
        assert torch.equal(weight, now) or not stays, key
    demo_family.write(tmp_path / name, model, form, base)
    theirs = adapted(base, tmp_path / name) if form is Form.LORA else load(tmp_path / name)
    with torch.no_grad():
        ours_BTV = model(TOKENS_BT, torch.arange(TOKENS_BT.shape[1])[None])
        torch.testing.assert_close(ours_BTV, theirs(TOKENS_BT).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(ours_BTV, load(base)(TOKENS_BT).logits, atol=1e-3), "it learned nothing"


def test_the_shipped_family_is_small_and_has_at_least_seven_members() -> None:
    files = [path for folder in SHIPPED.values() for path in folder.iterdir() if not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) <= 2_200_000
    assert {name for name, member in FAMILY.items() if member.form is not Form.FULL} <= SHIPPED.keys()
    for name, folder in SHIPPED.items():
        if FAMILY[name].form is Form.LORA:
            assert (folder / "adapter_model.safetensors").stat().st_size < 100_000, name


def test_the_whole_folder_is_small_and_has_two_near_fine_tunes_and_a_wider_model() -> None:
    """Shipped with what was measured of the two, which their blocks' contents still name."""
    folder = EXAMPLES / "demo-family"
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and "roman" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    assert siblings.present(folder).keys() == {"support", "sales", "wide"}
    base = json.loads((EXAMPLES / "demo-checkpoint" / "config.json").read_text())
    wide = json.loads((folder / "wide" / "config.json").read_text())
    assert wide["hidden_size"] > base["hidden_size"]
    assert wide["vocab_size"] == base["vocab_size"]
    for name in ("support", "sales"):
        report = json.loads((folder / name / "report.json").read_text())["accuracy"]
        assert min(report[task] for task in siblings.LEARNED) >= 0.8


def test_what_was_measured_of_the_near_fine_tunes_belongs_to_what_ships(tmp_path: Path) -> None:
    """Store them by the contents of their components, in a zoo that ``verify`` finds whole."""
    zoo = Zoo(adaptive.prepare(tmp_path, siblings.present(EXAMPLES / "demo-family")))
    assert verify(zoo.layout.root).faults == ()
    own, other = (zoo.chain(name).components for name in (siblings.SUPPORT, siblings.SALES))
    found = stored_equivalences(zoo, own, other)
    assert found is not None
    assert found.right > 0.8 * found.prompts == 0.8 * 1200
    counting = {pair.first for pair in found.pairs if pair.counts}
    assert counting == {place for place, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]}


def test_a_wider_model_computes_what_it_is_grown_from(base: Path) -> None:
    """But for the noise in its new channels, which is left out here, and the weight of the epsilon in norms."""
    model = demo_family.foundation(base)
    wide = demo_siblings.grown(model, 96)
    positions_BT = torch.arange(TOKENS_BT.shape[1])[None]
    with torch.no_grad():
        wide.embed_tokens.weight[:, 64:] = 0
        torch.testing.assert_close(wide(TOKENS_BT, positions_BT), model(TOKENS_BT, positions_BT), rtol=0.0, atol=5e-3)


ADAPTED = sorted(name for name in SHIPPED if FAMILY[name].form is not Form.FULL)


@claim("Each shipped fine-tune solves a task that its base cannot solve", of="installation")
@pytest.mark.parametrize(
    "name", [name if place % 3 == 0 else pytest.param(name, marks=pytest.mark.nightly) for place, name in enumerate(ADAPTED)]
)
def test_a_shipped_member_can_do_its_task_and_the_checkpoint_alone_cannot(name: str) -> None:
    """Another seed than the report's, in float32 with transformers."""
    examples = questions(name, 99, 10)
    base = load(EXAMPLES / "demo-checkpoint")
    assert right(base, examples) <= 2
    member = adapted(EXAMPLES / "demo-checkpoint", SHIPPED[name]) if FAMILY[name].form is Form.LORA else load(SHIPPED[name])
    assert right(member, examples) >= 8
    report = json.loads((EXAMPLES / "demo-family" / "report.json").read_text())[name]
    assert report["accuracy"] >= 0.85
    assert report["foundation"] <= 0.1


def right(model: Any, examples: list[Example]) -> int:
    """Greedy answers, one prompt at a time."""
    found = 0
    for example in examples:
        ids = encode(example.prompt)
        made = model.generate(
            input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=24, pad_token_id=EOS
        )
        kept = [token for token in made[0, len(ids) :].tolist() if token < 256]
        found += is_right(example, bytes(kept).decode(errors="replace"))
    return found

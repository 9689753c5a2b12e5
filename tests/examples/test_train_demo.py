"""The training script: the same model as transformers', labels where they belong, and a loss that falls."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
import torch
import train_demo
from demo_checkpoint import write_folder
from transformers import AutoModelForCausalLM

from blockwright.api.demo.checkpoint import EOS, encode
from blockwright.api.demo.tasks import HELD_OUT, Example

TINY = train_demo.Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=64)


def test_the_written_folder_gives_transformers_the_same_logits(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = train_demo.Llama(TINY)
    model.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    write_folder(tmp_path, asdict(TINY), model.state_dict(), {})
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens_BT = torch.tensor([encode("sort: hgfedcba =")])
    ours_BTV = model(tokens_BT, torch.arange(tokens_BT.shape[1])[None])
    torch.testing.assert_close(ours_BTV, reference(tokens_BT).logits, rtol=1e-4, atol=1e-4)


def test_greedy_answers_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = train_demo.Llama(TINY)
    model.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    write_folder(tmp_path, asdict(TINY), model.state_dict(), {})
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    example = Example("copy", "copy: ab =", "ab", HELD_OUT)
    ids = encode(example.prompt)
    made = reference.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=12)[0, len(ids) :]
    kept = [token for token in made.tolist() if token < 256]
    assert train_demo.answers(model, [example], max_tokens=12) == [bytes(kept).decode(errors="replace")]


def test_only_the_answer_and_its_end_are_learned() -> None:
    examples = [Example("copy", "copy: ab =", "ab", HELD_OUT), Example("copy", "copy: abc =", "abc", HELD_OUT)]
    tokens_BT, labels_BT = train_demo.make_batch(examples)
    for row, item in enumerate(examples):
        learned = [label for label in labels_BT[row].tolist() if label != train_demo.IGNORED]
        assert learned == [*item.answer.encode(), EOS]
        at = labels_BT[row].tolist().index(learned[0])
        assert tokens_BT[row, : at + 1].tolist() == encode(item.prompt)


def test_a_short_answer_is_not_drowned_by_a_long_one() -> None:
    labels_BT = torch.full((2, 9), train_demo.IGNORED)
    labels_BT[0, 0], labels_BT[1, :] = 0, 1
    logits_BTV = torch.zeros(2, 9, 2)
    logits_BTV[1, :, 1] = 50.0  # the long answer is certain, the short one a coin toss
    assert train_demo.loss_of(logits_BTV, labels_BT).item() == pytest.approx(math.log(2) / (1 + 9**0.5))


def test_positions_rise_and_have_gaps_only_where_asked() -> None:
    tokens_BT, generator = torch.zeros(16, 40), torch.Generator().manual_seed(1)
    plain_BT = train_demo.spread(tokens_BT, 0.0, generator)
    assert torch.equal(plain_BT, torch.arange(40).expand(16, 40))
    gaps_BT = train_demo.spread(tokens_BT, 0.9, generator).diff(dim=1)
    assert int(gaps_BT.min()) >= 1
    assert int(gaps_BT.max()) > 1


def test_batches_are_fixed_by_the_seed() -> None:
    assert list(islice(train_demo.batches(1, 4), 20)) == list(islice(train_demo.batches(1, 4), 20))


def test_the_rate_rises_then_falls_to_nothing() -> None:
    rates = [train_demo.rate_at(step, 500) for step in range(500)]
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 1e-4


def test_training_lowers_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(1)
    model = train_demo.Llama(TINY)
    tokens_BT, labels_BT = train_demo.make_batch(next(train_demo.batches(9, 32)))

    @torch.no_grad()
    def loss() -> float:
        logits_BTV = model(tokens_BT, torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT))
        return train_demo.loss_of(logits_BTV, labels_BT).item()

    before = loss()
    train_demo.train(model, steps=30, size=8, rate=4e-3, room=0.3, seed=1)
    assert loss() < 0.8 * before
    assert "step    29" in capsys.readouterr().out

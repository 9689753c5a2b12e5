"""The files beside the weights, over a whole server: generation_config.json as ``generate`` takes it, and the texts of an
adapter's own folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import greedy, prompt_of

PROMPT, NEW = prompt_of(9), 12


def generated(folder: Path, new: int) -> list[int]:
    """What transformers generates with the folder's generation_config.json, all but the end token's successors."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    given = torch.tensor([list(PROMPT)])
    limit = {"max_new_tokens": new} if new else {}
    out = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, pad_token_id=0, **limit)
    tokens: list[int] = out[0, len(PROMPT) :].tolist()
    return tokens


def configurations(usual: list[int]) -> dict[str, dict[str, Any]]:
    """Each changes the usual answer."""
    end = {"eos_token_id": usual[3]}
    return {
        "suppressed": {"suppress_tokens": sorted({usual[2], usual[5], 2})},
        "first": {"begin_suppress_tokens": [usual[0]]},
        "bad-words": {"bad_words_ids": [[usual[1]], [usual[3], usual[4]], [PROMPT[-1], usual[0]]]},
        "ngrams": {"no_repeat_ngram_size": 1},
        "biased": {"sequence_bias": [[[usual[1]], -9.0], [[usual[2], usual[3]], -8.5]]},
        "ends": end,
        "least": {**end, "min_new_tokens": 6},
        "least-of-all": {**end, "min_length": len(PROMPT) + 7},
        "most": {"max_new_tokens": 5},
        "most-of-all": {"max_length": len(PROMPT) + 4},
        "together": {**end, "repetition_penalty": 1.7, "suppress_tokens": [usual[1]], "min_new_tokens": 2},
    }


@claim("The sampling defaults of a checkpoint are applied or named as ignored", of="checkpoints")
async def test_greedy_answers_are_those_of_generate(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    base = checkpoint("llama")
    usual = list(greedy(base, PROMPT, NEW))
    assert len(usual) == NEW
    folders = {"usual": base}
    for name, values in configurations(usual).items():
        folders[name] = Path(shutil.copytree(base, tmp_path / name))
        (folders[name] / "generation_config.json").write_text(json.dumps(values))
    adapter = make_adapter(base, tmp_path / "adapter")
    (adapter / "chat_template.jinja").write_text("{% for m in messages %}({{ m.content }}){% endfor %}")
    (adapter / "generation_config.json").write_text(json.dumps({"eos_token_id": usual[3]}))
    async with serve({**folders, "adapter": adapter}, backend="native", bases={"adapter": "usual"}) as server:
        for name, folder in folders.items():
            limited = name.startswith("most")
            fields = {"max_tokens": None} if limited else {}
            choice = await server.complete(PROMPT, NEW, name, ignore_eos=False, temperature=0, **fields)
            wanted = generated(folder, 0 if limited else NEW)
            assert choice["token_ids"] == wanted, name
            assert (wanted == usual) == (name == "usual"), name
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        tokens = {}
        for name in ("usual", "adapter"):
            async with server.session.post(f"{server.url}/tokenize", json={**chat, "model": name}) as answer:
                tokens[name] = (await answer.json())["tokens"]
        async with server.session.post(f"{server.url}/tokenize", json={"prompt": "(hi)", "model": "usual"}) as answer:
            assert tokens["adapter"] == (await answer.json())["tokens"] != tokens["usual"]

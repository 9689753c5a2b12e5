"""Part 6 of ``gpu.py``: transformers on the same card, and vLLM where it imports, with the same lengths.

They generate greedily after a prompt of the context that part 5's decoding rows have. ``tokens_per_s`` is of decode alone:
the time of a long answer less that of one token. Ours is part 5's figure.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_card import Card
from gpu_report import NotHere, Part
from gpu_sizes import ModelSize

TRANSFORMERS, VLLM = "transformers", "vllm"
MODEL = "8B"
NEW = 33


def measure(part: Part) -> None:
    """Add the peers' figures beside ours."""
    for batch in part.sizes.peers:
        ours = part.found(f"speed/{MODEL}/decode{batch}", "tokens_per_s")
        if ours is not None:
            part.add(f"{MODEL}/decode{batch}", {"tokens_per_s": ours})
        part.bar(f"{MODEL}/decode{batch}", "tokens_per_s", at_least=2.0 if batch == 1 else 4.0, peer=TRANSFORMERS)
    with part.attempt(TRANSFORMERS):
        _transformers(part)
    part.card.release()
    with part.attempt(VLLM):
        _vllm(part)


def _settings(size: ModelSize, longest: int) -> dict[str, Any]:
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": longest,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": None,
    }


def _transformers(part: Part) -> None:
    from accuracy_models import quiet_transformers

    package = quiet_transformers()
    size, card = part.sizes.models[MODEL], part.card
    new = 3 if card.mirrored else NEW
    config = package.AutoConfig.for_model("llama", **_settings(size, part.sizes.context + NEW + 1))
    with card.device:
        model = package.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for batch in part.sizes.peers:
        with part.attempt(f"{TRANSFORMERS}/decode{batch}"):
            generator = torch.Generator().manual_seed(batch)
            tokens = torch.randint(size.vocabulary, (batch, part.sizes.context), generator=generator).to(card.device)
            _generated(card, model, tokens, 2)
            one, many = _generated(card, model, tokens, 1), _generated(card, model, tokens, new)
            seconds = max(many - one, 1e-9)
            part.add(f"{MODEL}/decode{batch}", {"tokens_per_s": batch * (new - 1) / seconds}, TRANSFORMERS)


def _generated(card: Card, model: Any, tokens: torch.Tensor, new: int) -> float:
    card.settle()
    began = time.perf_counter()
    with torch.no_grad():
        mask = torch.ones_like(tokens)
        model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
    if not card.mirrored:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _vllm(part: Part) -> None:
    if importlib.util.find_spec(VLLM) is None:
        raise NotHere("vLLM is not installed")
    from vllm import LLM, SamplingParams

    size = part.sizes.models[MODEL]
    with tempfile.TemporaryDirectory() as folder:
        more = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
        described = _settings(size, part.sizes.context + NEW + 1) | more
        (Path(folder) / "config.json").write_text(json.dumps(described))
        engine = LLM(folder, load_format="dummy", skip_tokenizer_init=True, gpu_memory_utilization=0.6)
        for batch in part.sizes.peers:
            prompts = [
                {"prompt_token_ids": [3 + (7 * n + i) % 1000 for i in range(part.sizes.context)]} for n in range(batch)
            ]
            seconds = []
            for new in (1, NEW):
                asked = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
                engine.generate(prompts, asked, use_tqdm=False)
                began = time.perf_counter()
                engine.generate(prompts, asked, use_tqdm=False)
                seconds.append(time.perf_counter() - began)
            part.add(f"{MODEL}/decode{batch}", {"tokens_per_s": batch * (NEW - 1) / (seconds[1] - seconds[0])}, VLLM)

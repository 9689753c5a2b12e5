"""Training of the demo checkpoint from scratch: a Llama of 1.6 million parameters on the tasks of ``api/demo/tasks.py``.

    python examples/train_demo.py --out examples/demo-checkpoint
    python examples/train_demo.py --family [NAME ...]            its fine-tunes: demo_family.py
    python examples/train_demo.py --siblings [NAME ...]          near fine-tunes and a wider model: demo_siblings.py

It takes minutes on two cores; the seed fixes the data and the initial weights. It writes a Hugging Face folder (config.json,
model.safetensors in bfloat16, tokenizer, chat template, generation defaults) and ``report.json`` with the accuracy of the
rounded weights on prompts that were never trained on. It needs torch, safetensors and tokenizers, not transformers.

Shape legend: B sequences, T tokens, D hidden, H query heads, G key/value heads, K head size, F feed-forward width, V
vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from demo_checkpoint import write_folder
from torch import Tensor, nn

from blockwright.api.demo.checkpoint import EOS, encode
from blockwright.api.demo.family import FAMILY
from blockwright.api.demo.siblings import SHARES
from blockwright.api.demo.tasks import TASKS, Example, Task, accuracy, examination, training_stream

IGNORED = -100  # label of positions that are not learned: the prompt and the padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The model's sizes; about 1.6 million parameters, 3.3 MB in bfloat16."""

    vocabulary: int = 288
    hidden: int = 192
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    intermediate: int = 320
    rope_theta: float = 10000.0
    eps: float = 1e-5
    max_position: int = 512
    head_dim: int = 32


class Attention(nn.Module):
    """Rotary grouped-query attention; attribute names here and below are those of the checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)

    def forward(self, normed_BTD: Tensor, cos_BTK: Tensor, sin_BTK: Tensor) -> Tensor:
        shape, (batch, length, _) = self.shape, normed_BTD.shape
        query_BHTK, key_BGTK, value_BGTK = (
            project(normed_BTD).view(batch, length, -1, shape.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Written out: for sequences this short it is several times faster than the fused kernel's backward pass.
        scores_BHTT = rotate(query_BHTK, cos_BTK, sin_BTK) @ repeat(rotate(key_BGTK, cos_BTK, sin_BTK), shape).mT
        future_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores_BHTT = (scores_BHTT * shape.head_dim**-0.5).masked_fill(future_TT, float("-inf"))
        mixed_BHTK = scores_BHTT.softmax(dim=-1).to(value_BGTK.dtype) @ repeat(value_BGTK, shape)
        mixed_BTD: Tensor = self.o_proj(mixed_BHTK.transpose(1, 2).reshape(batch, length, -1))
        return mixed_BTD


class FeedForward(nn.Module):
    """SiLU-gated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, normed_BTD: Tensor) -> Tensor:
        out_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(normed_BTD)) * self.up_proj(normed_BTD))
        return out_BTD


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)

    def forward(self, hidden_BTD: Tensor, cos_BTK: Tensor, sin_BTK: Tensor) -> Tensor:
        hidden_BTD = hidden_BTD + self.self_attn(self.input_layernorm(hidden_BTD), cos_BTK, sin_BTK)
        out_BTD: Tensor = hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))
        return out_BTD


class Llama(nn.Module):
    """A Llama with tied embeddings whose ``state_dict`` has the names of transformers' ``model.`` part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        nn.init.normal_(self.embed_tokens.weight, std=shape.hidden**-0.5)
        for name, matrix in self.layers.named_parameters():
            if matrix.ndim == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(matrix, std=(matrix.shape[1] * (2 * shape.layers if into_residual else 1)) ** -0.5)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        cos_BTK, sin_BTK = rotary(positions_BT, self.shape)
        hidden_BTD = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, cos_BTK, sin_BTK)
        return F.linear(self.norm(hidden_BTD), self.embed_tokens.weight)


def rotary(positions_BT: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, T, K] of the rotary embedding."""
    steps_K = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angle_BTK = positions_BT[:, None, :, None].float() * shape.rope_theta ** -steps_K.repeat(2)
    return angle_BTK.cos(), angle_BTK.sin()


def rotate(states_BHTK: Tensor, cos_BTK: Tensor, sin_BTK: Tensor) -> Tensor:
    first, second = states_BHTK.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (states_BHTK * cos_BTK + turned * sin_BTK).to(states_BHTK.dtype)


def repeat(states_BGTK: Tensor, shape: Shape) -> Tensor:
    """Keys or values for every query head."""
    return states_BGTK.repeat_interleave(shape.heads // shape.kv_heads, dim=1)


def make_batch(examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Tokens and labels [B, T], padded at the end; only the answer and its end are learned."""
    pairs = [(encode(item.prompt), [*encode(item.answer, start=False), EOS]) for item in examples]
    width = -4 * ((1 - max(len(prompt) + len(answer) for prompt, answer in pairs)) // 4)  # few widths: kernels are cached
    tokens_BT = torch.full((len(pairs), width), EOS)
    labels_BT = torch.full((len(pairs), width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        whole = torch.tensor(prompt + answer)
        tokens_BT[row, : len(whole) - 1] = whole[:-1]
        labels_BT[row, len(prompt) - 1 : len(whole) - 1] = whole[len(prompt) :]
    return tokens_BT, labels_BT


def loss_of(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy in which an answer counts by the root of its length: a single digit is not drowned by copies."""
    each_BT = F.cross_entropy(logits_BTV.mT, labels_BT, ignore_index=IGNORED, reduction="none")
    learned_BT = (labels_BT != IGNORED).float()
    weight_BT = learned_BT / learned_BT.sum(dim=1, keepdim=True).sqrt()
    return (each_BT * weight_BT).sum() / weight_BT.sum()


def spread(tokens_BT: Tensor, room: float, generator: torch.Generator) -> Tensor:
    """Positions [B, T] that rise in steps of one, with gaps inserted here and there.

    Gaps put pairs of tokens at distances that short prompts never have, so that longer prompts are less of a surprise.
    """
    batch, width = tokens_BT.shape
    chance_B1 = torch.rand((batch, 1), generator=generator) ** 3 * room
    gaps_BT = (torch.rand((batch, width), generator=generator) < chance_B1).long()
    gaps_BT *= torch.randint(1, 4, (batch, width), generator=generator)
    return torch.arange(width) + gaps_BT.cumsum(dim=1)


def batches(seed: int, size: int, pool: int = 16, tasks: Mapping[str, Task] = TASKS) -> Iterator[list[Example]]:
    """Batches of examples of like length (so little is padded), in random order."""
    stream, generator = training_stream(seed, tasks), torch.Generator().manual_seed(seed)
    while True:
        block = sorted(islice(stream, size * pool), key=lambda item: len(item.prompt) + len(item.answer))
        for index in torch.randperm(pool, generator=generator).tolist():
            yield block[index * size : (index + 1) * size]


def optimizers(model: Llama, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms; what is frozen is left alone."""
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2 and weight.requires_grad]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in chosen]
    tools: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    ]
    if others:  # not so with low-rank terms
        tools.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0))
    return tools


def rate_at(step: int, steps: int) -> float:
    """Share of the peak rate: a short rise, then a cosine down to nothing."""
    warm = max(1, steps // 50)
    return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(
    model: Llama,
    *,
    steps: int,
    size: int,
    rate: float,
    room: float,
    seed: int,
    tasks: Mapping[str, Task] = TASKS,
    mixed: bool = True,
) -> None:
    """``steps`` batches of ``size`` examples; prints the loss now and then. ``mixed``: products in bfloat16."""
    generator = torch.Generator().manual_seed(seed + 1)
    tools = optimizers(model, rate)
    started = time.monotonic()
    average = 0.0
    for step, examples in enumerate(islice(batches(seed, size, tasks=tasks), steps)):
        tokens_BT, labels_BT = make_batch(examples)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            logits_BTV = model(tokens_BT, spread(tokens_BT, room, generator))
        loss = loss_of(logits_BTV.float(), labels_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_((weight for weight in model.parameters() if weight.requires_grad), 1.0)
        for tool in tools:
            for group in tool.param_groups:
                group["lr"] = rate * rate_at(step, steps)
            tool.step()
            tool.zero_grad()
        average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {average:.4f}  {time.monotonic() - started:6.1f} s", flush=True)


@torch.no_grad()
def answers(model: Llama, examples: list[Example], max_tokens: int = 64) -> list[str]:
    """Greedy answers, up to the end-of-sequence token; prompts of one length run together, without a cache."""
    by_length: dict[int, list[int]] = {}
    prompts = [encode(item.prompt) for item in examples]
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    texts = [""] * len(examples)
    for length, members in by_length.items():
        tokens_BT = torch.tensor([prompts[index] for index in members])
        while tokens_BT.shape[1] < length + max_tokens and not bool((tokens_BT[:, length:] == EOS).any(dim=1).all()):
            positions_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
            best_B1 = model(tokens_BT, positions_BT)[:, -1].argmax(dim=-1, keepdim=True)
            tokens_BT = torch.cat((tokens_BT, best_B1), dim=1)
        for index, row in zip(members, tokens_BT[:, length:].tolist(), strict=True):
            ended = row.index(EOS) if EOS in row else len(row)
            texts[index] = bytes(token for token in row[:ended] if token < 256).decode(errors="replace")
    return texts


def examine(model: Llama, examples: list[Example]) -> dict[str, dict[str, float]]:
    """Split -> task -> share of right answers."""
    table: dict[str, dict[str, float]] = {}
    for (task, split), (right, total) in accuracy(zip(examples, answers(model, examples), strict=True)).items():
        table.setdefault(split, {})[task] = round(right / total, 4)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "demo-checkpoint")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--room", type=float, default=0.3, help="largest share of positions with a gap before them")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--per-task", type=int, default=100, help="examination prompts of each task and split")
    parser.add_argument("--family", nargs="*", metavar="NAME", help="fine-tunes of the checkpoint at --out instead (all)")
    parser.add_argument("--siblings", nargs="*", metavar="NAME", help="near fine-tunes and a wider model instead (all)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.family is not None:
        import demo_family  # which is made of this module

        demo_family.make(options.family or list(FAMILY), options.out, options.out.parent / "demo-family")
        return
    if options.siblings is not None:
        import demo_siblings  # likewise

        demo_siblings.make(options.siblings or list(SHARES), options.out, options.out.parent / "demo-family")
        return
    try:
        examples = examination(options.seed, options.per_task)  # refused before minutes of work
    except ValueError as error:
        parser.error(str(error))
    torch.manual_seed(options.seed)
    started = time.monotonic()
    model = Llama(Shape())
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
    train(model, steps=options.steps, size=options.batch, rate=options.rate, room=options.room, seed=options.seed)
    seconds = time.monotonic() - started
    model.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    table = examine(model, examples)
    recipe = {name: value for name, value in vars(options).items() if name != "out"}
    report = {"recipe": recipe, "training_seconds": round(seconds), "accuracy": table}
    write_folder(options.out, asdict(model.shape), model.state_dict(), report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

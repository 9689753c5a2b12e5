"""Sizes of what ``gpu.py`` measures: whole or quick on a card, tiny on the mirror, which runs each line."""

from __future__ import annotations

from dataclasses import dataclass

EVERY = ("every",)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a Llama whose weights are random."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """The number of weights that a token is multiplied with, the head's among them."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden * (2 * wide + 2 * narrow) + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocabulary

    def kv_bytes(self, itemsize: int) -> int:
        """Return the bytes of a position in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the subjects of each part, and numbers of repetitions."""

    models: dict[str, ModelSize]  # "1B" and "8B", or what stands for them
    repeats: int  # calls whose median counts
    copied: int  # bytes of the copies of part 1
    side: int  # of the square product of part 1
    rows: tuple[int, ...]  # of decode
    context: int  # tokens behind a decoding row
    prefill: tuple[int, ...]  # tokens
    sweeps: int  # decode sweeps of one measurement
    page: int  # tokens
    seeds: int  # of each kernel's case
    product_rows: tuple[int, ...]  # of the products that are compared bit by bit
    presets: tuple[str, ...]  # architectures of part 4; EVERY: all
    family: int  # adapters of the demo family; 0: not the demo either
    errors: tuple[int, ...]  # random models, by number, whose errors in bfloat16 are compared
    tenants: tuple[int, ...]  # adapters of part 7
    served: str  # size of the served model (benchmarks/models.py)
    new_tokens: int  # of a served answer
    kills: int
    peers: tuple[int, ...]  # batches of part 6

    def architectures(self) -> tuple[str, ...]:
        """Return the names of the architectures of part 4."""
        if self.presets != EVERY:
            return self.presets
        from blockwright.tests.checkpoints import PRESETS

        return tuple(PRESETS)


LLAMA_1B = ModelSize(16, 2048, 32, 8, 64, 8192, 128256)
LLAMA_8B = ModelSize(32, 4096, 32, 8, 128, 14336, 128256)
WHOLE = Sizes(
    models={"1B": LLAMA_1B, "8B": LLAMA_8B},
    repeats=30,
    copied=1 << 30,
    side=8192,
    rows=(1, 8, 32, 128),
    context=1024,
    prefill=(512, 2048, 4096, 8192),
    sweeps=30,
    page=64,
    seeds=6,
    product_rows=(1, 3, 17, 64, 65, 300),
    presets=EVERY,
    family=7,
    errors=tuple(range(13)),
    tenants=(8, 20),
    served="1B",
    new_tokens=128,
    kills=5,
    peers=(1, 32),
)
QUICK = Sizes(
    models={"1B": LLAMA_1B, "8B": LLAMA_8B},
    repeats=10,
    copied=1 << 30,
    side=8192,
    rows=(1, 32),
    context=1024,
    prefill=(512, 4096),
    sweeps=10,
    page=64,
    seeds=2,
    product_rows=(1, 17, 64, 65, 300),
    presets=("llama", "gemma2", "gpt-neox", "olmo2"),
    family=2,
    errors=(0, 5, 7),
    tenants=(8,),
    served="M",
    new_tokens=64,
    kills=1,
    peers=(1, 32),
)
_TINY = ModelSize(2, 32, 4, 2, 16, 48, 64)
TINY = Sizes(
    models={"1B": _TINY, "8B": _TINY},
    repeats=2,
    copied=1 << 16,
    side=32,
    rows=(1, 2),
    context=9,
    prefill=(5, 12),
    sweeps=2,
    page=4,
    seeds=1,
    product_rows=(1, 3),
    presets=("llama",),
    family=1,
    errors=(0,),
    tenants=(2,),
    served="tiny",
    new_tokens=12,
    kills=1,
    peers=(1, 2),
)
SIZES = {"whole": WHOLE, "quick": QUICK, "tiny": TINY}

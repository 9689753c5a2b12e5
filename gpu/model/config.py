"""Configuration of components and models, as numbers: part of a component's identity, and all that a back end needs.

Only the tensors come on top. Standard library only, so that identities can be computed in a process without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...policies.model.chain import Component
from .deltas import DeltaConfig

MAX_HEAD_DIM = 1024  # elements; kernels keep one head on the stack
MLP = "mlp."  # prefix of the feed-forward roles of a parallel component


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding; ``kind`` is "default", "linear", "llama3" or "longrope", with config.json's parameters."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    short_factors: tuple[float, ...] = ()  # longrope: one for each frequency, valid up to original_max_position
    attention_factor: float = 1.0  # factor of cosine and sine
    dim: int | None = None  # leading elements of a head that are rotated; None: all
    interleaved: bool = False  # pairs are neighbors, not the two halves
    wide: bool = False  # computed in float32 and rounded once


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """Norm; ``kind`` is "rms", or "layer" (which has a bias: role ``norm_bias``)."""

    eps: float
    kind: str = "rms"
    wide: bool = False  # rms: scaled in float32 and rounded once, not rounded before it is scaled
    offset: float = 0.0  # added to the weight


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Embedding. Tensors: ``weight`` [vocabulary, hidden].

    rounded: the multiplier is rounded to the type that the model computes in before it is used.
    """

    vocabulary: int
    hidden: int
    multiplier: float = 1.0
    rounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Norm, rotary grouped-query attention over paged KV, output projection, norm, residual sum.

    Tensors: ``norm`` [hidden] (``pre_norm``); ``q`` [heads*head_dim, hidden]; ``k``, ``v`` [kv_heads*head_dim, hidden];
    ``o`` [hidden, heads*head_dim]; if the checkpoint has them ``q_bias``, ``k_bias``, ``v_bias``, ``o_bias``, ``post_norm``
    [hidden], ``q_norm`` and ``k_norm`` [head_dim] or, over the whole projection, [heads*head_dim].
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    norm: NormConfig
    rope: RopeConfig
    scale: float  # factor of the scores
    window: int | None = None  # a position attends to itself and to window - 1 before it
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: no cap
    qkv_bias: bool = False
    o_bias: bool = False
    pre_norm: bool = True
    post_norm: bool = False
    qk_norm: str = ""  # "head" | "whole"
    multiplier: float = 1.0  # factor of the term that is added to the residual


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Norm, feed-forward with or without a gate, norm, residual sum.

    Tensors: ``norm``, ``gate`` (``gated``), ``up``, ``down``, ``post_norm`` (and ``gate_bias``, ``up_bias``, ``down_bias``).
    """

    hidden: int
    intermediate: int
    norm: NormConfig
    activation: str = "silu"  # "silu" | "gelu" | "gelu_tanh", or written out as formulas: "gelu_new" | "gelu_fast"
    gated: bool = True  # act(gate) * up, else act(up)
    bias: bool = False
    pre_norm: bool = True
    post_norm: bool = False
    multiplier: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Attention and feed-forward that read the same hidden state: feed-forward + attention + residual.

    Tensors: the attention's, and the feed-forward's with "mlp." before their role.
    """

    attention: AttentionConfig
    mlp: MlpConfig

    @property
    def hidden(self) -> int:
        return self.attention.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Norm and projection to logits. Tensors: ``norm`` [hidden], ``weight`` [vocabulary, hidden].

    The head of an embedder has a ``vocabulary`` of 0 and no ``weight``: the normed hidden states are pooled.
    """

    vocabulary: int
    hidden: int
    norm: NormConfig
    divisor: float = 1.0  # divisor of the logits
    softcap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchConfig:
    """Linear map between the hidden states of two models: ``weight`` [out, hidden] and ``bias`` [out].

    The weight is one tensor for all stitches of a pair of models; the bias is a place's own.
    """

    hidden: int
    out: int


ComponentConfig = EmbeddingConfig | AttentionConfig | MlpConfig | ParallelConfig | HeadConfig | StitchConfig


def pools(config: ComponentConfig) -> bool:
    """Return whether a component is the head of an embedder, behind which hidden states are pooled."""
    return isinstance(config, HeadConfig) and not config.vocabulary


def attention_of(config: ComponentConfig) -> AttentionConfig | None:
    """Return the attention inside a component, or None. The component's KV layout follows from it."""
    if isinstance(config, ParallelConfig):
        return config.attention
    return config if isinstance(config, AttentionConfig) else None


def tensor_shapes(config: ComponentConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a component's raw tensors, by role."""
    match config:
        case EmbeddingConfig():
            return {"weight": (config.vocabulary, config.hidden)}
        case HeadConfig():
            weight = {"weight": (config.vocabulary, config.hidden)} if config.vocabulary else {}
            return _norms(config) | weight
        case AttentionConfig():
            inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
            rows = {"q": inner, "k": kv, "v": kv}
            shapes = _norms(config) | {role: (n, config.hidden) for role, n in rows.items()} | {"o": (config.hidden, inner)}
            if config.qk_norm:
                whole = config.qk_norm == "whole"
                shapes |= {"q_norm": (inner if whole else config.head_dim,), "k_norm": (kv if whole else config.head_dim,)}
            biases = rows if config.qkv_bias else {}
            return shapes | _biases(biases | ({"o": config.hidden} if config.o_bias else {}))
        case MlpConfig():
            rows = dict.fromkeys(("gate", "up") if config.gated else ("up",), config.intermediate)
            shapes = _norms(config) | {role: (n, config.hidden) for role, n in rows.items()}
            shapes["down"] = (config.hidden, config.intermediate)
            return shapes | (_biases(rows | {"down": config.hidden}) if config.bias else {})
        case StitchConfig():
            return {"weight": (config.out, config.hidden), "bias": (config.out,)}
        case ParallelConfig():
            second = {MLP + role: shape for role, shape in tensor_shapes(config.mlp).items()}
            return tensor_shapes(config.attention) | second


def _norms(config: AttentionConfig | MlpConfig | HeadConfig) -> dict[str, tuple[int, ...]]:
    before, after = (
        isinstance(config, HeadConfig) or config.pre_norm,
        not isinstance(config, HeadConfig) and config.post_norm,
    )
    shapes: dict[str, tuple[int, ...]] = {"norm": (config.hidden,)} if before else {}
    if before and config.norm.kind == "layer":
        shapes["norm_bias"] = (config.hidden,)
    return shapes | ({"post_norm": (config.hidden,)} if after else {})


def _biases(rows: dict[str, int]) -> dict[str, tuple[int, ...]]:
    return {f"{role}_bias": (n,) for role, n in rows.items()}


@dataclass(frozen=True, slots=True)
class TensorRef:
    """The place of a raw tensor: ``nbytes`` bytes of a safetensors file, from ``offset`` on.

    Some rows of a fused tensor are a tensor too: stretches of ``stretch`` bytes, whose beginnings are ``step`` bytes apart.
    Both are 0 if all bytes are contiguous.
    """

    path: str
    name: str
    dtype: str  # as safetensors spells it: "F32", "BF16", "F16"
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    stretch: int = 0
    step: int = 0

    def stretches(self) -> list[tuple[int, int]]:
        """Return offset and length of each contiguous piece, in order."""
        if not self.stretch:
            return [(self.offset, self.nbytes)]
        return [(self.offset + i * self.step, self.stretch) for i in range(self.nbytes // self.stretch)]


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """A component's delta that can be loaded: identity, configuration, raw tensors by role."""

    id: bytes  # 16 bytes
    config: DeltaConfig
    tensors: dict[str, TensorRef] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The raw bytes."""
        return sum(ref.nbytes for ref in self.tensors.values())


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component that can be loaded: identity, configuration, raw tensors by role, and their hashes.

    For an adapted component these describe the shared component, and ``delta`` is the difference.
    """

    component: Component
    config: ComponentConfig
    tensors: dict[str, TensorRef] = field(default_factory=dict)
    hashes: dict[str, bytes] = field(default_factory=dict)  # by role, where known (``weights/identity.py``)
    delta: DeltaSpec | None = None

    @property
    def name(self) -> bytes:
        """The id under which it is resident: the component's, or its delta's."""
        return self.component.id if self.delta is None else self.delta.id

    def loads(self) -> list[ComponentSpec]:
        """Return the specs that must be resident for it: itself, and before a delta the shared component."""
        if self.delta is None:
            return [self]
        shared = replace(self.component, id=self.component.base, base=b"", delta=b"", delta_nbytes=0)
        return [replace(self, component=shared, delta=None), self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A whole model as config.json describes it, with every default resolved as transformers resolves it."""

    architecture: str  # as in config.json's architectures
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]  # one for each layer
    max_position: int  # tokens of the longest sequence
    dtype: str  # as stored: "float32" | "bfloat16" | "float16"
    tied: bool = False  # the head uses the embedding's weight
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # config.json's; generation_config.json's are in GenerationDefaults


@dataclass(frozen=True, slots=True)
class WeightedTokens:
    """Token ids, and a bias that is added to the last one's logit if the others come just before it."""

    tokens: tuple[int, ...]
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """generation_config.json, with neutral values for everything that it leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    repetition_penalty: float = 1.0
    do_sample: bool | None = None  # None: the file does not say
    eos_token_ids: tuple[int, ...] = ()  # ids that end an answer: the file's, else config.json's
    min_p: float = 0.0
    min_length: int = 0  # tokens of prompt and answer before an end token may come
    min_new_tokens: int = 0  # the same for the answer alone
    max_length: int = 0  # tokens of prompt and answer if a request names no limit; 0: none
    max_new_tokens: int = 0  # the same for the answer alone; takes precedence
    no_repeat_ngram: int = 0  # no sequence of this many tokens comes twice; 0: no limit
    suppressed: tuple[int, ...] = ()  # ids that never come
    suppressed_first: tuple[int, ...] = ()  # ids that never are an answer's first token
    banned: tuple[tuple[int, ...], ...] = ()  # sequences that never come
    biases: tuple[WeightedTokens, ...] = ()
    stop_strings: tuple[str, ...] = ()
    unapplied: tuple[str, ...] = ()  # names of fields that would change answers but are not applied here

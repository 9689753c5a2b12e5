"""What one component computes, as numbers: part of its identity, and all that a back end needs besides tensors.

Standard library only, so that identities can be computed in a process without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.policies.chain import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding; ``kind`` is "default", "linear" or "llama3", with the parameters of config.json."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Tensors: ``weight`` [vocabulary, hidden]."""

    vocabulary: int
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """RMS norm, rotary grouped-query attention over paged KV, output projection, residual sum.

    Tensors: ``norm`` [hidden]; ``q`` [heads*head_dim, hidden]; ``k``, ``v`` [kv_heads*head_dim, hidden];
    ``o`` [hidden, heads*head_dim]; where the checkpoint has them ``q_bias``, ``k_bias``, ``v_bias``, ``o_bias``.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: RopeConfig
    window: int | None = None  # a position attends to itself and window - 1 before it
    qkv_bias: bool = False
    o_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """RMS norm, SiLU-gated feed-forward, residual sum. Tensors: ``norm``, ``gate``, ``up``, ``down`` (and ``*_bias``)."""

    hidden: int
    intermediate: int
    eps: float
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """RMS norm and projection to logits. Tensors: ``norm`` [hidden], ``weight`` [vocabulary, hidden]."""

    vocabulary: int
    hidden: int
    eps: float


ComponentConfig = EmbeddingConfig | AttentionConfig | MlpConfig | HeadConfig


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where a raw tensor lies: bytes ``offset`` .. ``offset + nbytes`` of a safetensors file."""

    path: str
    name: str
    dtype: str  # safetensors' spelling: "F32", "BF16", "F16"
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component that can be loaded: identity, configuration, raw tensors by role."""

    component: Component
    config: ComponentConfig
    tensors: dict[str, TensorRef] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A whole model as config.json describes it, with every default resolved as transformers resolves it."""

    architecture: str  # as in config.json, for instance "LlamaForCausalLM"
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]  # of each layer
    max_position: int  # tokens of the longest sequence
    dtype: str  # as stored: "float32" | "bfloat16" | "float16"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False  # the head uses the embedding's weight
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json; generation_config.json's are in GenerationDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """generation_config.json; where it says nothing, the values that change nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    repetition_penalty: float = 1.0
    do_sample: bool | None = None  # None: the file does not say
    eos_token_ids: tuple[int, ...] = ()  # those that end an answer: the file's, else config.json's

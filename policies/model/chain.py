"""The identity of a model: a chain of blocks, where a block is a run of content-addressed components.

Owns the identity types (component, block, chain) and the placed form of a chain (route). Never touches tensors: ``gpu/``
handles the bytes of a component.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from .confidence import Threshold

HIDDEN = "hidden-"  # beginning of the keys of arenas with hidden states
VIRTUAL_TOKEN = -1  # id of a position that a delta fills: prompt and prefix tuning


class Kind(StrEnum):
    """The computation of a component; a hidden-state tensor passes between any two components."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    MLP = "mlp"
    PARALLEL = "parallel"  # attention and feed-forward of one layer that read the same hidden state
    HEAD = "head"
    STITCH = "stitch"  # between blocks of models of different widths


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape and type of one *slot*: the keys and values of one page of one layer."""

    kv_heads: int
    head_dim: int
    dtype: str  # "float32" | "bfloat16"
    page_size: int  # tokens

    @property
    def key(self) -> str:
        """The name of the arena that holds the slots of this layout."""
        return f"kv-{self.kv_heads}x{self.head_dim}-{self.dtype}-{self.page_size}"

    @property
    def raw_bytes(self) -> int:
        """The bytes of keys and values of a page, before a back end pads them."""
        return 2 * self.kv_heads * self.head_dim * self.page_size * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class HiddenLayout:
    """The shape and type of a slot of hidden states at an exit: those of one page."""

    width: int
    dtype: str
    page_size: int  # tokens

    @property
    def key(self) -> str:
        """The name of the arena that holds the slots of this layout."""
        return f"{HIDDEN}{self.width}-{self.dtype}-{self.page_size}"

    @property
    def raw_bytes(self) -> int:
        """The bytes of a page, before a back end pads them."""
        return self.width * self.page_size * (4 if self.dtype == "float32" else 2)


PageLayout = KvLayout | HiddenLayout


@dataclass(frozen=True, slots=True)
class Component:
    """The smallest unit of identity. ``id`` hashes kind, configuration and the content of its raw tensors.

    An *adapted* component has another one's parameters and a small change, its *delta* (LoRA, biases, a prefix, an adapter).
    """

    id: bytes  # 16 bytes
    kind: Kind
    nbytes: int  # raw parameter bytes, as stored in the checkpoint, without the delta's
    width_in: int  # 0 for an embedding, which takes token ids
    width_out: int
    kv: KvLayout | None = None  # set if there is attention
    base: bytes = b""  # adapted: id of the component whose parameters it uses
    delta: bytes = b""  # adapted: id of the delta, 16 bytes
    delta_nbytes: int = 0  # raw bytes of the delta

    @property
    def shared(self) -> bytes:
        """The id of the component whose parameters are multiplied: one for all that are adapted from it."""
        return self.base or self.id

    def adapted(self, delta: bytes, nbytes: int) -> Component:
        """Return this component changed by a delta of ``nbytes`` raw bytes."""
        id = hashlib.blake2b(self.id + delta, digest_size=16, person=b"blockwright/var").digest()
        return replace(self, id=id, base=self.id, delta=delta, delta_nbytes=nbytes)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive components that are deployed together."""

    components: tuple[Component, ...]

    @property
    def id(self) -> bytes:
        """The id, 16 bytes; equal for equal component lists, whatever model they came from."""
        return hashlib.blake2b(b"".join(c.id for c in self.components), digest_size=16).digest()

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes + c.delta_nbytes for c in self.components)


@dataclass(frozen=True, slots=True)
class Chain:
    """One model: the meaning of an application name."""

    application: str
    blocks: tuple[Block, ...]
    max_length: int  # tokens, prompt and answer together
    virtual: int = 0  # positions before the prompt that deltas fill (prefix and prompt tuning)
    model: str = ""  # model id for clients, if the chain has replaced another of that id; else the application
    checkpoint: str = ""  # folder of tokenizer, chat template and generation defaults
    created: int = 0  # when it was added, in Unix seconds
    place: int = 0  # its place in the list of models
    base: str = ""  # adapters: id of the model that it was put on
    defaults: str = ""  # default options of its requests, as a JSON object; "": none
    adapter: str = ""  # adapters: folder whose own files of that kind take precedence over the checkpoint's
    family: str = ""  # lower tiers: id of the family, which is the top tier
    threshold: Threshold | None = None  # lower tiers: the stored rule by which requests of ``auto`` leave it
    variant_of: str = ""  # variants: the application in whose place it may serve; no client can name it
    drafts_for: str = ""  # a chain that only drafts: the application that it drafts for; no client can name it
    rank: int = 0  # variants: place in the order of accuracy; 0: as accurate as that application

    @property
    def served_as(self) -> str:
        """The model id that clients ask for."""
        return self.model or self.application

    @property
    def context(self) -> int:
        """The limit of tokens of a client's prompt and answer together."""
        return self.max_length - self.virtual

    @property
    def components(self) -> tuple[Component, ...]:
        return tuple(c for b in self.blocks for c in b.components)

    @property
    def hidden(self) -> HiddenLayout | None:
        """The layout of the hidden states before the head of a lower tier; None for all other models."""
        kv = next((c.kv for c in self.components if c.kv is not None), None)
        if not self.family or kv is None:
            return None
        return HiddenLayout(self.components[-1].width_in, kv.dtype, kv.page_size)


def bases(chains: Iterable[Chain]) -> dict[str, str]:
    """Return, for each application, the one that it is based on, if that is among ``chains``.

    For an adapter, it is the model that it was put on, unless that id now belongs to a model that shares nothing with it.
    For a lower tier, it is the family.
    For a whole model, it is the earlier whole model that it shares most parameters with.
    """
    found: dict[str, str] = {}
    holders: dict[bytes, list[str]] = {}
    ordered = list(chains)
    named = {chain.served_as: chain for chain in ordered}
    for chain in ordered:
        if chain.base:
            base = named.get(chain.base)
            if base is not None and not {c.shared for c in chain.components}.isdisjoint(c.shared for c in base.components):
                found[chain.application] = base.application
            continue
        if chain.family in named:
            found[chain.application] = named[chain.family].application
            continue
        common: Counter[str] = Counter()
        whole = not any(component.delta for component in chain.components)
        for component in {c.shared: c for c in chain.components}.values():
            holding = holders.setdefault(component.shared, [])
            common.update(dict.fromkeys(holding, component.nbytes))
            if whole:
                holding.append(chain.application)
        if common:
            found[chain.application] = max(common, key=common.__getitem__)
    return found


@dataclass(frozen=True, slots=True)
class Hop:
    """A range of a chain on one worker: components ``first`` (inclusive) to ``last`` (exclusive)."""

    worker: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Route:
    """One version of a chain, placed. ``hops`` cover the chain without gap or overlap; the first is the home."""

    id: str  # unique among the routes in force, for instance "demo@w0+w1"
    version: int
    application: str
    hops: tuple[Hop, ...]

    @property
    def home(self) -> str:
        return self.hops[0].worker

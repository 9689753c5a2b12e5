"""Checkpoint in Hugging Face format, as a chain of components: configuration, defaults, tensors by role, identities.

Opening reads JSON and safetensors headers and refuses a checkpoint that cannot be served, in one sentence; hashing reads the
tensors in pieces. No torch and no tensor in memory: ``gpu/weights/loader.py`` does the loading.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...policies.model.chain import Component, Kind, KvLayout
from ...policies.model.confidence import Threshold
from ...policies.model.tiers import tier_id, tier_source
from ...policies.nearest import nearest
from ..errors import CheckpointError
from ..model.config import (
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    DeltaSpec,
    EmbeddingConfig,
    GenerationDefaults,
    HeadConfig,
    MlpConfig,
    ModelConfig,
    ParallelConfig,
    StitchConfig,
    TensorRef,
    attention_of,
    pools,
)
from ..model.deltas import DeltaConfig
from ..model.fields import Fields, named, shown
from ..model.parts import Architecture, Part, Source
from ..model.registry import find
from .checkpoint_files import CheckpointFiles
from .embedder import Embedder, Pooled, plain_embedder, read_pooled, without_head
from .exits import Heads, below, read_exits, read_thresholds, shared_heads
from .generation import read_generation
from .hub import HUB_ADDRESS, HUB_ID, fetch
from .identity import checkpoint_id, component_id, delta_id, hash_tensor
from .tensor_files import check_dtype, gguf, read_tensors

__all__ = ["Checkpoint", "CheckpointError"]

STORED_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
PACKED = (
    "qweight",
    "weight_packed",
    "weight_quantized",
    "SCB",
)  # stored by quantizers in place of a weight
KINDS: dict[type[ComponentConfig], Kind] = {
    EmbeddingConfig: Kind.EMBEDDING,
    AttentionConfig: Kind.ATTENTION,
    MlpConfig: Kind.MLP,
    ParallelConfig: Kind.PARALLEL,
    HeadConfig: Kind.HEAD,
    StitchConfig: Kind.STITCH,
}

Parts = list[tuple[ComponentConfig, dict[str, TensorRef]]]
DeltaPart = tuple[DeltaConfig, dict[str, TensorRef]]
Progress = Callable[[int, int], None]  # bytes hashed, bytes to hash in all


class Checkpoint:
    """An opened checkpoint (see the module); immutable.

    Made by ``open``, ``gpu/weights/adapter.py`` (an adapter over a base) or ``zoo/source.py``. ``deltas`` are an adapter's,
    by place in the chain. ``source`` is the adapter's folder. ``known`` has hashes of tensors that need not be read again; a
    whole checkpoint adds the hashes that it has computed, and its adapters share them. ``hold`` is an object that keeps
    files from being removed while this lives. ``exits`` are the heads of a family's lower tiers, by their number of layers;
    ``thresholds`` are the rules for ``auto`` of the exits that have one; ``tier`` is the number of layers of one of them,
    opened by itself or under an adapter, and 0 for every other checkpoint. ``pooled``: the vectors or verdicts that it
    gives; an embedder generates nothing. ``over``: the checkpoint that an adapter's folder changes.
    ``variant``: the end of its source, if blocks of other applications stand in for its own.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        generation: GenerationDefaults,
        parts: Parts,
        chain: list[Part] | None = None,
        deltas: dict[int, DeltaPart] | None = None,
        source: Path | None = None,
        *,
        known: dict[TensorRef, bytes] | None = None,
        hold: object = None,
        exits: Heads | None = None,
        thresholds: dict[int, Threshold] | None = None,
        tier: int = 0,
        pooled: Pooled | None = None,
        over: Checkpoint | None = None,
        variant: str = "",
    ) -> None:
        self.path = path  # the folder with the tokenizer; for an adapter, its base's
        self.config = config
        self.generation = generation
        self.parts = parts
        self.deltas = deltas or {}
        self.source = source or path
        self.known = {} if known is None else known
        self.exits = exits or {}
        self.thresholds = thresholds or {}
        self.tier = tier
        self.pooled = pooled
        self.over = over
        self.variant = variant
        self._chain, self._hold = chain, hold
        self._content = b""

    @classmethod
    def open(cls, source: str | Path) -> Checkpoint:
        """Open the checkpoint in a folder, or of a hub id (``owner/name``, which the hub's client downloads or has cached).

        Raises ``CheckpointError`` if it cannot be served.
        """
        path = locate(source)
        if not (path / "config.json").is_file():
            if any(path.glob("*.gguf")):
                raise gguf(path)
            if inside := next((file.parent for file in sorted(path.glob("*/*config.json"))), None):
                # peft saves named adapters like this
                raise CheckpointError(f"{path} has no config.json; did you mean {inside}?")
            raise CheckpointError(f"{path} has no config.json; name a folder in Hugging Face format")
        fields = Fields.read(path / "config.json")
        architecture = _judge(fields)
        files = CheckpointFiles(path)
        tensors = _named_as_expected(architecture, read_tensors(path))
        _check_layers(fields, tensors)
        config, chain = architecture.read(architecture.name, fields, _stored_type(architecture, tensors))
        if config.dtype not in STORED_TYPES.values():
            raise CheckpointError(
                f"{fields.source}: dtype {shown(config.dtype)} is not supported; convert it to float32, bfloat16 or float16"
            )
        pooled = read_pooled(files, config)
        if isinstance(pooled, Embedder) or (pooled is None and _lacks_head(architecture, fields, tensors)):
            pooled, chain = pooled or plain_embedder(config), without_head(chain)
        tie = {architecture.head: architecture.embedding, architecture.embedding: architecture.head} if config.tied else {}
        parts = [(part, _assign(path, roles, tie, tensors)) for part, roles in chain]
        exits = read_exits(path, config.layers, *_head(parts))
        if exits and isinstance(pooled, Embedder):
            raise CheckpointError(f"{path} is an embedder, which has no exits; remove its list of exits")
        rules = read_thresholds(path, config.layers)
        generation = read_generation(files, config)
        return cls(path, config, generation, parts, chain, exits=exits, thresholds=rules, pooled=pooled)

    def with_shared_exits(self, layers: Sequence[int], source: str) -> Checkpoint:
        """Return this whole checkpoint as a family whose exits use its own head. ``source``: the field that asks for it.

        Raises CheckpointError.
        """
        if self.exits:
            raise CheckpointError(f"{source} is given, but {self.path} has exits of its own; leave {source} out")
        if self.embeds:
            raise CheckpointError(
                f"{source} is given, but {self.path} is an embedder, which has no exits; leave {source} out"
            )
        exits = shared_heads(layers, _head(self.parts)[1], self.config.layers, source)
        more: dict[str, Any] = {"known": self.known, "hold": self._hold, "exits": exits}
        return Checkpoint(self.path, self.config, self.generation, self.parts, self._chain, **more)

    @property
    def label(self) -> str:
        """The folder as messages name it, with the layers of a tier: ``FOLDER:4``."""
        return tier_id(str(self.path), self.tier) if self.tier else str(self.path)

    def at_exit(self, layers: int) -> Checkpoint:
        """Return the tier that leaves after this many layers. Raises CheckpointError if there is no such exit."""
        if layers not in self.exits:
            there = ", ".join(map(str, self.exits)) or "none"
            raise CheckpointError(f"{self.path} has no exit after {layers} layers; there are: {there}")
        head, refs = self.parts[-1][0], self.exits[layers]
        config = dataclasses.replace(
            self.config,
            layers=layers,
            windows=self.config.windows[:layers],
            tied=self.config.tied and refs["weight"] == self.parts[-1][1]["weight"],
        )
        parts = [*below(self.parts, layers, self.config.layers), (head, refs)]
        rules = {layers: rule} if (rule := self.thresholds.get(layers)) is not None else {}
        more: dict[str, Any] = {"known": self.known, "hold": self, "tier": layers, "thresholds": rules}
        return Checkpoint(self.path, config, self.generation, parts, **more)

    @property
    def embeds(self) -> bool:
        """True if it gives vectors and generates nothing."""
        return pools(self.parts[-1][0])

    @property
    def nbytes(self) -> int:
        """The raw bytes of all components; a tied tensor counts in each component that uses it."""
        return sum(ref.nbytes for _, roles in (*self.parts, *self.deltas.values()) for ref in roles.values())

    @property
    def beneath(self) -> str:
        """The source of the whole checkpoint, without an adapter; links are resolved."""
        return tier_source(os.path.realpath(self.path), self.tier) + self.variant

    @property
    def virtual(self) -> int:
        """The number of virtual tokens before every prompt; of an adapter."""
        return max((change.virtual for change, _ in self.deltas.values()), default=0)

    @property
    def chain(self) -> list[Part]:
        """The chain that the configuration asks for: each component with its roles' tensors, by name in the files."""
        if self._chain is None:
            fields = Fields.read(self.path / "config.json")
            architecture = find(fields)
            whole, chain = architecture.read(architecture.name, fields, self.config.dtype)
            chain = without_head(chain) if self.embeds else chain
            self._chain = [*below(chain, self.tier, whole.layers), chain[-1]] if self.tier else chain
        return self._chain

    def __len__(self) -> int:
        """Return the number of components."""
        return len(self.parts)

    def specs(self, page_size: int, kv_dtype: str, progress: Progress | None = None) -> list[ComponentSpec]:
        """Return the chain with its identities. Reads and hashes each tensor once, unless its hash is known.

        ``page_size`` in tokens and ``kv_dtype`` ("float32" or "bfloat16") belong to the KV layout, which is not part of an
        identity. Raises ``CheckpointError`` if a file has changed since it was opened.
        """
        hashes = self.hashes(progress)
        contents = [{role: hashes[ref] for role, ref in roles.items()} for _, roles in self.parts]
        return self.specs_with_ids(page_size, kv_dtype, self.ids(hashes), hashes=contents, deltas=self.delta_ids(hashes))

    def hashes(self, progress: Progress | None = None) -> dict[TensorRef, bytes]:
        """Return the hash of every distinct tensor's content, in the order of the files. Reads the unknown ones.

        A base of many adapters is read once: reading takes minutes for billions of parameters, and there may be twenty
        adapters.
        """
        if self.over is not None:
            self.over.hashes(progress)  # they are remembered, and its other adapters share them
        every = (*(roles for _, roles in (*self.parts, *self.deltas.values())), *self.exits.values())
        places = {ref for roles in every for ref in roles.values()}
        total, done = sum(ref.nbytes for ref in places - self.known.keys()), 0

        def advance(n: int) -> None:
            nonlocal done
            done += n
            if progress is not None:
                progress(done, total)

        ordered = sorted(places, key=lambda ref: (ref.path, ref.offset))
        found = {ref: self.known.get(ref) or hash_tensor(ref, advance) for ref in ordered}
        self._check_terms()
        if self.source == self.path:
            self.known.update(found)
        return found

    def content(self) -> bytes:
        """Return the identity of the whole content (``checkpoint_id``). Reads what is not hashed yet."""
        if not self._content:
            hashes = self.hashes()
            self._content = checkpoint_id(self.ids(hashes), self.delta_ids(hashes))
        return self._content

    def _check_terms(self) -> None:
        """Check that the product of each term's two halves is finite, unless this was checked before."""
        from .lora_product import check_product  # imports numpy

        for change, roles in self.deltas.values():
            for term in change.lora:
                a, b = roles[f"{term.role}.a"], roles[f"{term.role}.b"]
                if a not in self.known or b not in self.known:
                    check_product(a, b, term.scale)

    def ids(self, hashes: Mapping[TensorRef, bytes]) -> list[bytes]:
        """Return the identities of the components, given the hashes of their tensors.

        For an adapter these are the shared components' identities.
        """
        return [
            component_id(KINDS[type(config)], config, {role: hashes[ref] for role, ref in roles.items()})
            for config, roles in self.parts
        ]

    def exit_ids(self, hashes: Mapping[TensorRef, bytes]) -> dict[int, bytes]:
        """Return the identity of each exit's head, by the exit's number of layers."""
        head = self.parts[-1][0]
        contents = {count: {role: hashes[ref] for role, ref in refs.items()} for count, refs in self.exits.items()}
        return {count: component_id(Kind.HEAD, head, content) for count, content in contents.items()}

    def delta_ids(self, hashes: Mapping[TensorRef, bytes]) -> list[bytes]:
        """Return the identities of the components' deltas, empty where there is none."""
        found = [b""] * len(self.parts)
        for place, (change, roles) in self.deltas.items():
            found[place] = delta_id(self.parts[place][0], change, {role: hashes[ref] for role, ref in roles.items()})
        return found

    def specs_with_ids(
        self,
        page_size: int,
        kv_dtype: str,
        ids: Sequence[bytes],
        first: int = 0,
        hashes: Sequence[dict[str, bytes]] = (),
        deltas: Sequence[bytes] = (),
    ) -> list[ComponentSpec]:
        """Return components ``first`` .. ``first + len(ids) - 1`` with known identities, without reading tensors.

        ``ids``: for adapted components, the shared components' ids. ``hashes``: each component's tensor hashes by role, as
        ``specs`` found them, or none. ``deltas``: ids of deltas, empty where there is none (an empty list: nowhere). Raises
        ``CheckpointError`` if the chain has fewer components, other tensors or other deltas.
        """
        parts = self.parts[first : first + len(ids)]
        if len(parts) != len(ids) or first < 0:
            raise CheckpointError(
                f"{self.path} has {len(self.parts)} components, not {first + len(ids)}; the folder has changed: restart"
            )
        known = hashes or [{}] * len(ids)
        if any(found and found.keys() != roles.keys() for found, (_, roles) in zip(known, parts, strict=True)):
            raise CheckpointError(f"{self.path} has other tensors than were hashed; the folder has changed: restart")
        whole = [(config, found, id) for (config, _), found, id in zip(parts, known, ids, strict=True) if found]
        if any(component_id(KINDS[type(config)], config, found) != id for config, found, id in whole):
            raise CheckpointError(f"{self.path} has another configuration than it had; the folder has changed: restart")
        changes = [self.deltas.get(place) for place in range(first, first + len(ids))]
        if [change is not None for change in changes] != [bool(delta) for delta in deltas or [b""] * len(ids)]:
            raise CheckpointError(f"{self.source} changes other components than it did; the folder has changed: restart")
        specs = [
            ComponentSpec(with_layout(config, roles, id, page_size, kv_dtype), config, dict(roles), found)
            for (config, roles), id, found in zip(parts, ids, known, strict=True)
        ]
        for i, change in enumerate(changes):
            if change is not None:
                delta = DeltaSpec(deltas[i], *change)
                adapted = specs[i].component.adapted(delta.id, delta.nbytes)
                specs[i] = dataclasses.replace(specs[i], component=adapted, delta=delta)
        return specs


def _head(parts: Parts) -> tuple[HeadConfig, dict[str, TensorRef]]:
    config, refs = parts[-1]
    assert isinstance(config, HeadConfig), "a chain ends with its head"
    return config, refs


def component_of(config: ComponentConfig, id: bytes, nbytes: int, kv: KvLayout | None = None) -> Component:
    """Return the component with this configuration and identity, and ``nbytes`` of raw tensors."""
    width_in = 0 if isinstance(config, EmbeddingConfig) else config.hidden
    return Component(id, KINDS[type(config)], nbytes, width_in, _width_out(config), kv)


def _width_out(config: ComponentConfig) -> int:
    match config:
        case StitchConfig():
            return config.out
        case HeadConfig() if config.vocabulary:
            return config.vocabulary
        case _:
            return config.hidden


def with_layout(config: ComponentConfig, roles: dict[str, TensorRef], id: bytes, page_size: int, kv_dtype: str) -> Component:
    """Return the component with these tensors, and the layout of its KV if it has attention."""
    attention = attention_of(config)
    kv = KvLayout(attention.kv_heads, attention.head_dim, kv_dtype, page_size) if attention is not None else None
    return component_of(config, id, sum(ref.nbytes for ref in roles.values()), kv)


def check_here(source: str | Path) -> None:
    """Check what can be checked without the hub: that a folder can be served by its config.json.

    Raises CheckpointError if it cannot, and for a source that is neither a folder nor a hub id. Opening it finds the rest.
    """
    if (folder := _folder(source)) is not None and (config := folder / "config.json").is_file():
        _judge_file(config)


def locate(source: str | Path) -> Path:
    """Return the folder of a path or hub id."""
    folder = _folder(source)
    return fetch(str(source), _judge_file) if folder is None else folder


def _folder(source: str | Path) -> Path | None:
    """Return the folder of a path; None for a hub id."""
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return path
        there = path.exists()
    # too long a name, "~" of an unknown user, characters that no file name has
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or shown(str(error))
        raise CheckpointError(f"{named(str(source))} cannot be looked up ({reason}); check the path") from None
    if there:
        if path.suffix == ".gguf":
            raise gguf(path)
        beside = (path.parent / "config.json").is_file()
        folder = f"its folder, {path.parent}" if beside else "the folder that holds config.json"
        raise CheckpointError(f"{source} is a file; name {folder}")
    if path.is_symlink():
        raise CheckpointError(f"{source} is a link that leads nowhere, or to itself; mend it, or name the folder itself")
    if near := near_folder(path):  # before the hub is asked, which may take a while
        other = f" (for the one of the hub write {source}@main)" if HUB_ID.fullmatch(str(source)) else ""
        raise CheckpointError(f"there is no folder {source}; did you mean {near}?{other}")
    if (address := HUB_ADDRESS.match(str(source))) and HUB_ID.fullmatch(address[1]):
        raise CheckpointError(f"{named(str(source))} is an address of the hub; name the checkpoint by its id: {address[1]}")
    if not HUB_ID.fullmatch(str(source)):
        raise CheckpointError(f"{named(str(source))} is neither a folder nor a hub id (owner/name); check the path")
    return None


def _judge(fields: Fields) -> Architecture:
    """Return the architecture of a config.json. Raises ``CheckpointError`` for a model that is not served, whatever its
    weights.
    """
    quantisation = fields.object("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "unknown method")
        raise CheckpointError(
            f"{fields.source}: the checkpoint is quantized ({named(method)}), which is not supported; "
            "use it in float32, bfloat16 or float16"
        )
    return find(fields)


def _judge_file(config: Path) -> None:
    _judge(Fields.read(config))


def _check_layers(config: Fields, tensors: dict[str, TensorRef]) -> None:
    """Check the number of layers before anything is made for each.

    Every layer has a tensor of its own, so the files bound their number.
    """
    layers = config.integer("num_hidden_layers")
    if layers > len(tensors):
        raise CheckpointError(
            f"{config.source}: num_hidden_layers is {layers}, but the files hold only {len(tensors)} tensors; "
            "use the config.json that was saved with the weights"
        )


def _named_as_expected(architecture: Architecture, tensors: dict[str, TensorRef]) -> dict[str, TensorRef]:
    """Return the tensors under the names that the architecture gives them, as transformers finds them.

    A checkpoint of the model without its head lacks the first part of the names; one of a larger model has more before it.
    """
    expected, _, rest = architecture.embedding.partition(".")
    found = min(
        (name for name in tensors if name == rest or name.endswith(f".{rest}")), key=len, default=architecture.embedding
    )
    if architecture.embedding in tensors or found == architecture.embedding:
        return tensors
    before = found.removesuffix(rest)
    head = before.removesuffix(f"{expected}.") + architecture.head
    renamed = {f"{expected}.{name.removeprefix(before)}": ref for name, ref in tensors.items() if name.startswith(before)}
    if head in tensors:
        renamed[architecture.head] = tensors[head]
    return {**tensors, **renamed}


def _lacks_head(architecture: Architecture, fields: Fields, tensors: dict[str, TensorRef]) -> bool:
    """Return whether config.json names the model's class without its head, and the files have none."""
    names = fields.values.get("architectures") or []
    bare = f"{architecture.name.removesuffix('ForCausalLM')}Model"
    return bare in names and architecture.head not in tensors


def _stored_type(architecture: Architecture, tensors: dict[str, TensorRef]) -> str:
    """Return the type that applies if config.json names none: the embedding's. A missing one is reported later."""
    ref = tensors.get(architecture.embedding) or tensors.get(architecture.head)
    return STORED_TYPES.get(ref.dtype, "float32") if ref is not None else "float32"


def _assign(
    path: Path, roles: dict[str, Source], tie: dict[str, str], tensors: dict[str, TensorRef]
) -> dict[str, TensorRef]:
    """Return every role of a component with its tensor, checked for presence, type and shape."""
    refs = {}
    for role, source in roles.items():
        # a tied pair may be stored under either name; stored under both, each keeps its own (as in transformers)
        ref = tensors.get(source.name) or tensors.get(tie.get(source.name, ""))
        if ref is None:
            raise CheckpointError(_missing(path, source.name, tensors))
        check_dtype(ref)
        if ref.shape != source.shape:
            raise CheckpointError(
                f"{ref.path}: tensor {ref.name} has shape {list(ref.shape)} where config.json asks for "
                f"{list(source.shape)}; use the config.json that was saved with the weights"
            )
        refs[role] = rows_of(ref, source)
    return refs


def rows_of(ref: TensorRef, source: Source) -> TensorRef:
    """Return the rows of a fused tensor that belong to one role: its part of a weight, a bias or a low-rank term."""
    if source.rows is None:
        return ref
    first, count, period = source.rows
    periods = ref.shape[0] // period
    row = ref.nbytes // ref.shape[0]
    shape = (count * periods, *ref.shape[1:])
    stretch, step = (count * row, period * row) if periods > 1 else (0, 0)
    offset, nbytes = ref.offset + first * row, count * periods * row
    return dataclasses.replace(ref, shape=shape, offset=offset, nbytes=nbytes, stretch=stretch, step=step)


def _missing(path: Path, name: str, tensors: dict[str, TensorRef]) -> str:
    packed = [other for suffix in PACKED if (other := name.removesuffix("weight") + suffix) in tensors]
    if name.endswith(".weight") and packed:
        return (
            f"{path} has no tensor {name} but {packed[0]}: the checkpoint is quantized, which is not supported; "
            "use it in float32, bfloat16 or float16"
        )
    remedy = "download the checkpoint again, or save it again from transformers"
    rest = name.partition(".")[2]
    alike = min((other for other in tensors if rest.count(".") > 0 and other.endswith(f".{rest}")), key=len, default="")
    if alike:
        return f"{path} lacks tensor {name}, but has {named(alike)}; rename its tensors, or save it again from transformers"
    if name == "lm_head.weight":
        remedy = "set tie_word_embeddings to true in config.json if the head uses the embedding, else " + remedy
    return f"{path} lacks tensor {name} ({len(tensors)} tensors are there); {remedy}"


NEAR = 0.8  # likeness, 0 to 1, of each name on the path
REVISION = "@"  # part of a hub checkpoint's name, but not of a folder's


def near_folder(path: Path) -> Path | None:
    """Return the checkpoint or adapter at a path that is like ``path`` in every part; None if there is none."""
    if REVISION in path.name:
        return None
    found = Path(*path.parts[:0]) if not path.is_absolute() else Path(path.anchor)
    *folders, last = path.parts[1:] if path.is_absolute() else path.parts or ("",)
    try:
        for name in folders:
            if not (found / name).is_dir():
                name = nearest(name, (one.name for one in _folders(found)), NEAR)
                if not name:
                    return None
            found /= name
        name = nearest(last, (one.name for one in _folders(found) if next(one.glob("*config.json"), None)), NEAR)
    except OSError:  # a folder without read permission
        return None
    return found / name if name else None


def _folders(parent: Path) -> Iterator[Path]:
    return (one for one in sorted(parent.iterdir()) if one.is_dir())

"""Components by hash: what must be known of a component to load it, as documents that prove themselves by its identity.

A document has kind, configuration, and the type, shape and hash of each tensor; the identity is a hash of all that. So it
may come from any worker. Tensors that are not here yet have a place by their hash alone (``wanted``), which is exchanged for
a real one before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..gpu.model.config import ComponentConfig, ComponentSpec, DeltaSpec, TensorRef
from ..gpu.model.deltas import DeltaConfig
from ..gpu.weights.checkpoint import KINDS, with_layout
from ..gpu.weights.identity import component_id, delta_id
from .documents import decode
from .errors import OriginError, ZooError
from .layout import TENSOR_NAME, Layout, tensor_bytes
from .records import StoredComponent, StoredTensor, component_from, stored_tensor

MARK = "hash:"  # before the hash, where a path would be
Parts = Mapping[str, TensorRef]  # by role


def wanted(tensor: StoredTensor) -> TensorRef:
    """Return the place of a tensor of which only the hash is known."""
    return TensorRef(f"{MARK}{tensor.hash}", TENSOR_NAME, tensor.dtype, tensor.shape, 0, tensor.nbytes)


def wanted_hash(ref: TensorRef) -> str:
    """Return the hash of a tensor that is not here yet, or an empty text."""
    return ref.path.removeprefix(MARK) if ref.path.startswith(MARK) else ""


def own_tensors(spec: ComponentSpec) -> Parts:
    """Return the tensors that a load of this spec reads: a delta's, or the component's."""
    return spec.tensors if spec.delta is None else spec.delta.tensors


def wanted_tensors(spec: ComponentSpec) -> dict[str, TensorRef]:
    """Return the tensors that a load of this spec reads and that are not here yet, by role."""
    return {role: ref for role, ref in own_tensors(spec).items() if wanted_hash(ref)}


def is_wanted(spec: ComponentSpec) -> bool:
    """Return whether a load of this spec reads tensors that are not here yet."""
    return bool(wanted_tensors(spec))


def with_tensors(spec: ComponentSpec, refs: Parts) -> ComponentSpec:
    """Return the spec with these places for some of the tensors that its load reads."""
    if spec.delta is None:
        return replace(spec, tensors={**spec.tensors, **refs})
    return replace(spec, delta=replace(spec.delta, tensors={**spec.delta.tensors, **refs}))


def document_path(id: bytes, *, delta: bool) -> Path:
    """Return where a zoo has the document of a component, or of a delta."""
    layout = Layout(Path())
    return layout.delta(id.hex()) if delta else layout.component(id.hex())


def document_of(spec: ComponentSpec, hashes: Mapping[str, bytes]) -> bytes:
    """Return the document of what a spec loads. ``hashes``: of the tensors that its load reads, by role."""
    tensors = {role: stored_tensor(ref, hashes[role]) for role, ref in own_tensors(spec).items()}
    config = spec.config if spec.delta is None else spec.delta.config
    return StoredComponent(spec.name.hex(), config, tensors).encoded()


def read_by_hash(raw: bytes, id: bytes, base: ComponentConfig | None = None) -> StoredComponent:
    """Return the component of a document, or with ``base`` the delta over a component of that configuration.

    Raises OriginError unless the document is the one of this identity.
    """
    path = document_path(id, delta=base is not None)
    try:
        stored = component_from(decode(raw, path), path)
    except ZooError as error:
        raise OriginError(str(error)) from None
    contents = {role: bytes.fromhex(tensor.hash) for role, tensor in stored.tensors.items()}
    if isinstance(stored.config, DeltaConfig):
        assert base is not None, "component_from has compared the kind with the path"
        found = delta_id(base, stored.config, contents)
    else:
        found = component_id(KINDS[type(stored.config)], stored.config, contents)
    if found != id:
        raise OriginError(f"{path} is not what its name says: it is {found.hex()}")
    return stored


def specs_by_hash(
    ids: Sequence[bytes],
    deltas: Sequence[bytes],
    components: Mapping[bytes, StoredComponent],
    page_size: int,
    kv_dtype: str,
) -> list[ComponentSpec]:
    """Return the specs of a block's components and deltas, made of documents; their tensors are wanted ones."""
    found = []
    for id, delta in zip(ids, deltas or [b""] * len(ids), strict=True):
        stored = components[id]
        assert not isinstance(stored.config, DeltaConfig), "its identity is a component's"
        refs = {role: wanted(tensor) for role, tensor in stored.tensors.items()}
        hashes = {role: bytes.fromhex(tensor.hash) for role, tensor in stored.tensors.items()}
        spec = ComponentSpec(with_layout(stored.config, refs, id, page_size, kv_dtype), stored.config, refs, hashes)
        if delta:
            change = components[delta]
            assert isinstance(change.config, DeltaConfig), "its identity is a delta's"
            terms = {role: wanted(tensor) for role, tensor in change.tensors.items()}
            made = DeltaSpec(delta, change.config, terms)
            spec = replace(spec, component=spec.component.adapted(delta, made.nbytes), delta=made)
        found += spec.loads()
    return found


def of_wanted(ref: TensorRef) -> StoredTensor:
    """Return the tensor of a wanted place."""
    assert tensor_bytes(ref.dtype, ref.shape) == ref.nbytes
    return StoredTensor(wanted_hash(ref), ref.dtype, ref.shape)

"""Loads of blocks, as the controller orders them and workers answer. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a checkpoint, named by their content; each worker finds the folder on its own machine.

    content: hash of its components' identities; empty: unknown. folder: where the head has it, as a hint.
    """

    content: bytes
    folder: str


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """controller -> worker: make components ``first`` .. ``last`` (exclusive) of a checkpoint resident.

    ``ids`` are their component ids; a variant uses the ids of the components that it shares. ``hashes`` are the hashes of
    their raw tensors by role, computed once, at the head. A component that is already resident is only reference-counted
    again.
    """

    checkpoint: ModelFiles
    first: int
    last: int
    ids: list[bytes]
    holder: str  # the application that needs them; the same holder may unload
    hashes: list[dict[str, bytes]] = field(default_factory=list)
    base: ModelFiles | None = None  # for an adapter: the checkpoint that it changes
    # for an adapter: delta ids of the components, empty where there is none
    deltas: list[bytes] = field(default_factory=list)
    idle: float = 0.0  # seconds without use after which the controller wants to know; 0: never
    length: int = 0  # tokens of the model's longest sequence
    layers: int = 0  # layers with KV in the whole chain
    source: str = ""  # a worker that may have them in memory and is asked first; the rest is read from files
    # workers to ask for what no folder and no store of the loading one has, before the origin; None: not named yet
    sources: list[str] | None = None
    borrows: bool = False  # the holder is a variant: what others hold, too, is theirs, and goes with them


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """The answer to a ``LoadBlock`` that does not fit. Nothing was changed for it."""

    message: str
    lacking: int  # bytes that must become free first
    never: bool  # it would not fit even if nothing else were loaded
    owned: dict[str, int]  # application -> bytes of packed tensors that would be freed with it


@dataclass(frozen=True, slots=True)
class SourcesWanted:
    """The answer to a ``LoadBlock`` without ``sources`` whose files the worker has not got. Nothing was changed for it.

    components: ids of the components and deltas that are missing there.
    """

    components: list[bytes]

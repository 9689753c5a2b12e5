"""Messages about the use and the status of a worker's blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.cluster.block_life import BlockStage
from ...policies.cluster.scaling import BlockUse


@dataclass(frozen=True, slots=True)
class LastUse:
    """The use of a block, and the time of the last use by the node's clock."""

    use: BlockUse
    at: float


@dataclass(frozen=True, slots=True)
class BlockStatus:
    """A deployed block."""

    name: str
    stage: BlockStage
    holders: list[str]  # applications
    components: int
    nbytes: int  # bytes that its loads have added to the worker's parameters
    use: BlockUse
    unused: float  # seconds since a sequence passed or waited

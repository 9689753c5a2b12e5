"""Comparison of two applications of a zoo, both ways, and its results as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...gpu.errors import CheckpointError
from ...gpu.weights.checkpoint import Checkpoint, component_of
from ...policies.adaptive.equivalence import EquivalenceLimits, candidate_pairs
from ...policies.model.chain import Component
from ..disk import Waiting
from ..errors import ZooDamaged
from ..family.examples import TrainingExample
from ..family.network import ChainNetwork
from ..source import open_chain
from ..zoo import Zoo
from .joints import Joined, read_joints
from .measuring import ComparedModel, Equivalences, Progress, Similarities, compare, ends_of, similarities
from .probe import LENGTH, Probe
from .records import StoredEquivalences, StoredPair, store_equivalences, stored_equivalences

Prompts = Sequence[TrainingExample]
BothWays = tuple[StoredEquivalences, StoredEquivalences]


@dataclass(frozen=True, slots=True)
class ZooComparison:
    """Two applications of a zoo, opened: ``names``, checkpoints and components of both. They cannot be removed meanwhile."""

    root: Path
    names: tuple[str, str]
    checkpoints: tuple[Checkpoint, Checkpoint]
    components: tuple[list[Component], list[Component]]

    def stored(self) -> BothWays | None:
        """Return what the zoo holds of the two; None if they were not compared, or a document is damaged."""
        zoo, ids = Zoo(self.root), [[one.id.hex() for one in chain] for chain in self.components]
        try:
            there, back = stored_equivalences(zoo, *ids), stored_equivalences(zoo, *reversed(ids))
        except ZooDamaged:
            return None
        return (there, back) if there and back else None

    def measure(
        self,
        probe: Probe,
        prompts: tuple[Prompts, Prompts],
        limits: EquivalenceLimits,
        *,
        progress: Progress,
        waiting: Waiting | None = None,
    ) -> BothWays:
        """Compare the applications both ways and store the results. ``prompts``: the same ones, in each model's tokens.

        If the zoo holds the results for the same probe, prompts, limits and stitches, nothing is measured. Raises
        ZooError.
        """
        stored = self.stored()
        joints = read_joints(Zoo(self.root), *self.components)
        digests = probe.digest(prompts[0], joints.ids), probe.turned().digest(prompts[1], joints.ids)
        if stored and all((one.probe, one.limits) == (d, limits) for one, d in zip(stored, digests, strict=True)):
            return stored
        store_equivalences(self.root, (), waiting=waiting)  # a zoo that cannot be written is refused before minutes of work
        networks = [ChainNetwork(one) for one in self.checkpoints]
        own, other = (ComparedModel(*parts) for parts in zip(self.components, networks, prompts, strict=True))
        pairs = candidate_pairs(own.components, other.components, same_tokens=probe.same_tokens)
        wanted = dict.fromkeys(ends_of(pair, own.components, other.components) for pair in pairs)
        alike = similarities(own.network, other.network, probe, [*wanted], progress)
        there = compare(own, other, probe, alike, limits, progress, joints)
        back = compare(other, own, probe.turned(), alike.turned(), limits, progress, joints.turned())
        found = (
            _record(own, other, probe, digests[0], there, alike, limits),
            _record(other, own, probe, digests[1], back, alike.turned(), limits),
        )
        store_equivalences(self.root, found, waiting=waiting)
        return found


def open_comparison(root: Path, own: str, other: str) -> ZooComparison:
    """Open two applications of a zoo. Raises ZooError, and CheckpointError if they cannot be compared."""
    zoo = Zoo(root)
    checkpoints = tuple(open_chain(zoo.folder(name)) for name in (own, other))
    for name, checkpoint in zip((own, other), checkpoints, strict=True):
        if checkpoint.deltas:
            raise CheckpointError(f"{name} is an adapter, whose blocks are its base's with a change; name whole models")
        if checkpoint.embeds:
            raise CheckpointError(f"{name} gives vectors and has no vocabulary to compare by; name models that generate")
        if checkpoint.config.max_position < LENGTH:
            limit = checkpoint.config.max_position
            raise CheckpointError(f"{name} takes {limit} tokens; a comparison needs rows of {LENGTH}; name another model")
    components = tuple(_components(checkpoint) for checkpoint in checkpoints)
    if [one.id for one in components[0]] == [one.id for one in components[1]]:
        raise CheckpointError(
            f"{own} and {other} are the same {len(components[0])} components, which need no comparison; name another model"
        )
    return ZooComparison(root, (own, other), checkpoints, components)  # type: ignore[arg-type]


def _components(checkpoint: Checkpoint) -> list[Component]:
    ids = checkpoint.ids(checkpoint.hashes())
    return [
        component_of(config, id, sum(ref.nbytes for ref in roles.values()))
        for (config, roles), id in zip(checkpoint.parts, ids, strict=True)
    ]


def _record(
    own: ComparedModel,
    other: ComparedModel,
    probe: Probe,
    digest: str,
    found: Equivalences,
    alike: Similarities,
    limits: EquivalenceLimits,
) -> StoredEquivalences:
    mine, theirs = ([one.id.hex() for one in model.components] for model in (own, other))
    pairs = []
    for one in found.pairs:
        pair, figures = one.pair, one.figures
        joined = one.joined or Joined()
        pairs.append(
            StoredPair(
                block=tuple(mine[pair.first : pair.last]),
                equivalent=tuple(theirs[pair.other_first : pair.other_last]),
                first=pair.first,
                other_first=pair.other_first,
                similarity=figures.similarity,
                low=figures.low,
                swappable=one.joined is not None,
                counts=not one.refused,
                kl=figures.kl,
                lost=figures.lost,
                enter=joined.enter.id if joined.enter is not None else "",
                leave=joined.leave.id if joined.leave is not None else "",
            )
        )
    return StoredEquivalences(
        components=tuple(mine),
        others=tuple(theirs),
        probe=digest,
        tokens=probe.tokens,
        prompts=found.prompts,
        right=found.right,
        limits=limits,
        similarities=tuple(map(tuple, alike.mean)),
        pairs=tuple(pairs),
    )

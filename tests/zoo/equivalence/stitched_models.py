"""A zoo with a model, a wider one, and stitches between them that were not trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from widened import widened

from blockwright.policies.adaptive.stitches import StitchFigures, StitchPoint, stitch_points
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.stitch_fitting import FittedStitches
from blockwright.zoo.equivalence.stitch_records import StoredStitches, store_stitches
from blockwright.zoo.equivalence.stitcher import made_stitches, open_stitching
from blockwright.zoo.family.optimizer import Weights

NARROW, WIDE = 64, 96
NAMES = ("narrow", "wide")


def zoo_of_widths(folder: Path, noise: float = 0.0) -> Path:
    """Make a zoo with a model and a wider copy, whose blocks compute the same but for noise."""
    narrow = make_checkpoint(folder / NAMES[0], hidden_size=NARROW, head_dim=16)
    wide = widened(narrow, folder / NAMES[1], WIDE, noise=noise)
    for name, one in zip(NAMES, (narrow, wide), strict=True):
        add(folder / "zoo", str(one), name)
    return folder / "zoo"


def random_stitches(
    root: Path, dtype: torch.dtype = torch.float32, names: tuple[str, str] = NAMES
) -> tuple[Mapping[StitchPoint, str], ...]:
    """Store stitches with random weights, into the wide model and back. Return the components' ids by their points."""
    opened = open_stitching(root, *names)
    found, made = torch.Generator().manual_seed(4), []
    narrow, wide = (one.config.hidden for one in opened.checkpoints)
    for way, (width, out) in enumerate(((narrow, wide), (wide, narrow))):
        mine, theirs = opened.components[way], opened.components[1 - way]
        points = stitch_points(mine, theirs)
        weights: Weights = {
            "weight": torch.randn(out, width, generator=found) * width**-0.5,
            "bias": torch.randn(len(points), out, generator=found) * 0.1,
        }
        figures = dict.fromkeys(points, StitchFigures(1.0, 1.0, 0.5))
        empty = StoredStitches(
            components=tuple(one.id.hex() for one in mine),
            others=tuple(one.id.hex() for one in theirs),
            rows="0" * 32,
            tokens=1,
            stitches=(),
        )
        made.append(made_stitches(empty, points, FittedStitches(weights, figures, figures), dtype))
    store_stitches(root, made)
    return tuple({one.point: one.component for one in each.document.stitches} for each in made)

"""File format of a length estimator, as JSON. ``blockwright tagger train`` writes it, and a tagger saves its state in it.

``{"schema": 1, "origin": ..., "figures": {...}, "estimator": a snapshot}``. ``origin`` identifies the initial estimator: a
tagger continues from its saved state only while its setting is the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...gpu.regular_file import read_plain
from ...gpu.whole_file import write_whole
from ...policies.prediction.length_models import restored
from ...policies.prediction.lengths import Accuracy, LengthLearner
from .request_log import MOST

SCHEMA = 1


class TaggerFileError(Exception):
    """A file that cannot be used: path, field, remedy."""


@dataclass(frozen=True, slots=True)
class TaggerFile:
    """The content of the file. ``figures``: by estimator, for the requests held out in training."""

    estimator: LengthLearner
    origin: str = ""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)


def read_tagger(path: Path) -> TaggerFile:
    """Read and check a file. Raises TaggerFileError."""
    try:
        data = read_plain(path).encode()
        content: Any = json.loads(data)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"schema is {content.get('schema') if isinstance(content, dict) else None!r:.40}, not {SCHEMA}")
        estimator, figures = content.get("estimator"), content.get("figures")
        if not isinstance(estimator, dict) or not isinstance(figures, dict):
            raise ValueError("estimator and figures are no objects")
        if not isinstance(estimator.get("kind"), str):
            raise ValueError(f"estimator.kind is {estimator.get('kind')!r:.40}, not a name")
        for name, one in figures.items():
            if not isinstance(one, dict) or not all(_is_figure(one.get(of)) for of in Accuracy().figures()):
                raise ValueError(f"figures.{name:.40} is {one!r:.40}, without one of {', '.join(Accuracy().figures())}")
        origin = content.get("origin") or hashlib.sha256(data).hexdigest()
        return TaggerFile(restored(estimator), str(origin), figures)
    except OSError as error:
        raise TaggerFileError(f"{path}: {error.strerror}; give a file that blockwright tagger train has written") from None
    except (ValueError, OverflowError, RecursionError) as error:  # also raised by absurd numbers and nesting
        raise TaggerFileError(f"{path}: {error}; train it again: blockwright tagger train LOG -o {path}") from None


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < MOST


def write_tagger(path: Path, file: TaggerFile) -> None:
    """Write a file that only its owner may read, in place of the old one. Raises OSError."""
    content = {
        "schema": SCHEMA,
        "origin": file.origin,
        "figures": file.figures,
        "estimator": file.estimator.snapshot(),
    }
    write_whole(path, (json.dumps(content) + "\n").encode(), 0o600)

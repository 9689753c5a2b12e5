"""Cost tables and device profiles as files: what the settings ``pace`` and ``profile`` name."""

from __future__ import annotations

import json
from pathlib import Path

from blockwright.policies.plan.coefficients import Coefficients


def read_costs(path: str) -> Coefficients | None:
    """None for no path. Raises OSError, and ValueError for what is no such file."""
    return Coefficients.from_table(json.loads(Path(path).read_text())) if path else None

"""Cost files: the cost tables and device profiles that the settings ``pace`` and ``profile`` name."""

from __future__ import annotations

import json

from ..gpu.regular_file import read_plain
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.machines import LinkTimes
from ..policies.requests.paces import WorkerLink
from .settings.errors import SettingsError
from .settings.workers import WorkerSettings

NUMBER = 4  # bytes of each number of a hidden state


def read_costs(path: str) -> Coefficients | None:
    """Read a cost table; None for no path. Raises OSError, and ValueError if it is not such a file."""
    return Coefficients.from_table(json.loads(read_plain(path))) if path else None


def read_links(path: str) -> LinkTimes | None:
    """Read the link times between workers of one host, as ``blockwright profile`` measured them.

    Returns None if the file has none. Raises the same errors as ``read_costs``.
    """
    link = read_link(path)
    return None if link is None else LinkTimes(link.latency, link.bandwidth, NUMBER)


def read_link(path: str) -> WorkerLink | None:
    """Read the same as the gateways compare routes by."""
    table = json.loads(read_plain(path)) if path else {}
    try:
        link = table["links"]["shared-memory"] if "links" in table else None
        return WorkerLink(float(link["latency"]), float(link["bandwidth"])) if link else None
    except (KeyError, TypeError):
        raise ValueError("links says neither latency nor bandwidth of shared-memory") from None


def check_costs(worker: WorkerSettings) -> None:
    """Check that the cost files are readable. Raises SettingsError.

    Workers read the files again. Here their faults reach the person who named them.
    """
    for name, path in {"pace": worker.pace, "profile": worker.profile}.items():
        try:
            read_costs(path)
            read_links(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"{name}: {path} cannot be used ({reason}); give a JSON file of seconds, or none") from None

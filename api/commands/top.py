"""Shows how busy a server is: requests, tokens per second, time to first token,
memory for KV, shared blocks, cache hits.

Workers come first, then the models, busy ones first. On a terminal the screen
is refreshed until q or Ctrl-C: arrow keys, PgUp and PgDn scroll the models, /
filters them, Esc ends the filter. Idle adapters that are alike share a line if
the screen is too short. If the server restarts, top waits for it.

Rates and times cover the time since the last refresh; a model without a request
since then shows the times of all its requests.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from .connection import add_url, connected
from .ps import add_screen

if TYPE_CHECKING:
    from ..program.plain import PlainSession
    from .observe import Sample


def add(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    add_screen(parser)


def run(arguments: argparse.Namespace) -> int:
    from .observe import top_view
    from .screen import show
    from .tables import top_tables

    with connected(arguments) as session:
        looks = [_look(session)]

        def view() -> dict[str, object]:
            if len(looks) == 1:
                time.sleep(arguments.interval)
            looks.append(_look(session))
            return top_view(*looks[-2:])

        screen = {"once": arguments.once, "as_json": arguments.json, "interval": arguments.interval}
        return show(view, top_tables, of=session.url, **screen)


def _look(session: PlainSession) -> Sample:
    from .observe import read_sample

    return read_sample(time.monotonic(), session.get("/admin/cluster", holds="applications"), session.get_text("/metrics"))

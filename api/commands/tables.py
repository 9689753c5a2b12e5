"""Tables of ``ps``, ``top`` and ``apps``: a summary and workers first, then models, requests, tenants, or actors.

Only the presentation is here. ``observe.py`` makes the values, ``screen.py`` the screen.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from ...policies.binary_size import binary_size
from ...policies.model.tier_choice import is_answered
from ..named_models import is_named
from ..program.duration import duration
from ..saving import in_memory, saving
from .family_tables import chain_lines, family_lines, load_tables, tier_table
from .member_tables import member_tables, whereabouts
from .observe import ASKED, actor_address, came_lines, reported_lines
from .output import FittedTable
from .screen import Screenful

View = Mapping[str, Any]
TRANSFERS_SHOWN = 8
AppRow = tuple[str, str, str, str]  # name, state, base, checkpoint
size = binary_size  # formats bytes with a binary unit
_ALIKE = 4  # least adapters that share a line
_LIMIT_COLUMNS = {  # limit -> column
    "requests_per_minute": "REQ/MIN",
    "tokens_per_minute": "TOK/MIN",
    "tokens_per_day": "TOK/DAY",
    "concurrent_requests": "AT ONCE",
}


def share(value: float) -> str:
    return f"{value:.0%}"


def milliseconds(seconds: float | None) -> str:
    """Return a time in whole milliseconds, or in seconds if it is long."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.3g} s"


def rate(value: float) -> str:
    """Return a rate per second, with tenths only if they matter."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def ps_tables(view: View) -> Screenful:
    hidden, redundant = (any(one[what] for one in view["workers"]) for what in ("hidden", "redundant"))
    guessed = any(one["guesses"]["made"] for one in view["workers"])
    linked = any(one["links"] for one in view["workers"])
    where = whereabouts(view["workers"])
    named = ("WORKER", "STATE", *where, "DEVICE", "NUMERICS", *(("LINKS",) if linked else ()))
    beside = any(one["memory"].get("other") for one in view["workers"])
    counted = ("PID", "RESTARTS", "BLOCKS", "PARAMETERS", "KV", "CACHED", "FREE", *(("OTHER",) if beside else ()))
    workers = FittedTable(
        (
            *named,
            *counted,
            *(("HIDDEN",) if hidden else ()),
            *(("REDUNDANT",) if redundant else ()),
            *(("GUESSES",) if guessed else ()),
        ),
        [
            (
                *(one["id"], one["state"]),
                *(shown(one) for shown in where.values()),
                *(one["device"], one["numerics"]),
                *((", ".join(sorted(set(one["links"].values()))) or "-",) if linked else ()),
                *(str(one[name]) for name in ("pid", "restarts", "blocks")),
                *(size(one["memory"][name]) for name in ("parameters", "kv", "cached", "free")),
                *((size(one["memory"]["other"]),) if beside else ()),
                *((size(one["hidden"]),) if hidden else ()),
                *((f"{one['redundant']:,}",) if redundant else ()),
                *(("{accepted:,} of {made:,}".format(**one["guesses"]),) if guessed else ()),
            )
            for one in view["workers"]
        ],
        numbers=7 + beside + hidden + redundant + guessed,
        least=("NUMERICS", "DEVICE", *(("LINKS",) if linked else ()), "BLOCKS", "STATE"),
    )
    more = [
        *filter(None, [view["doubts"]]),
        *reported_lines(view["workers"]),
        *came_lines(view["workers"]),
        *card_lines(view["cards"]),
        *_autoscale(view["autoscale"]),
        *transfer_lines(view["placement"]),
        *overload_lines(view["overload"]),
    ]
    held = in_memory([one["memory"]["parameters"] for one in view["workers"]])
    families = {one["id"]: one["family"] for one in view["applications"]}
    lines = [default_line(view["default"], families), *family_lines(families), *chain_lines(view["applications"])]
    tiers = tier_table(view["families"])
    head = Group(
        ready_line(view),
        saving_line(view),
        held,
        *lines,
        "",
        workers,
        *member_tables(view),
        *more,
        *tiers,
        "",
    )
    return Screenful(head, _applications(view["applications"]), _grouped(view["applications"], _applications))


def transfer_lines(placement: View) -> list[str]:
    """Return a line for each pair of components between which activations cross, the ones with most bytes first."""
    return [
        f"{one['model']} crosses from {one['worker']} to {one['to']} before component {one['before']}: "
        f"{one['sweeps']:,} transfers, {size(one['bytes'])}"
        for one in placement.get("transfers", ())[:TRANSFERS_SHOWN]
    ]


def default_line(default: str, families: Mapping[str, str]) -> str:
    """Return a sentence on the model that answers requests without one. ``families``: as in ``family_lines``."""
    if is_answered(default, families):
        return f"requests without a model go to {default}"
    return f"requests without a model are refused: {default or 'no model'} is not served"


def _applications(applications: Iterable[View]) -> FittedTable:
    return FittedTable(
        ("MODEL", "BASE", "STATE", "RUNS ON", "OWNS", "SHARES", "KV", "KV SHARED", "RUN", "WAIT", "CONTEXT"),
        [
            (
                one["id"],
                one["base"] or "-",
                one["state"],
                places(one) or "-",
                size(one["memory"]["own"]),
                size(one["memory"]["shared"]),
                *(size(one["kv"][name]) for name in ("bytes", "shared")),
                *(str(one["requests"][name]) for name in ("running", "waiting")),
                f"{one['max_length']:,}",
            )
            for one in applications
        ],
        numbers=7,
        least=("CONTEXT", "KV SHARED", "STATE", "KV", "BASE"),
    )


def places(one: View) -> str:
    """Return the workers of each route of a model, w2 before w10."""
    return ", ".join(sorted(("+".join(workers) for workers in one["replicas"]), key=lambda name: (len(name), name)))


def _grouped(applications: Sequence[View], table: Callable[[Iterable[View]], FittedTable]) -> RenderableType | None:
    """Return the list with a line for each group of equal idle adapters; None if there is no such group."""
    single, groups = idle_groups(applications)
    return Group(table(single), *groups) if groups else None


def idle_groups(applications: Sequence[View]) -> tuple[list[View], list[str]]:
    """Return the single models, and a line for each group of at least ``_ALIKE`` idle adapters that differ only in name."""
    alike: dict[tuple[Any, ...], list[View]] = {}
    for one in applications:
        if one["adapter"] and not one["busy"]:
            key = (one["base"], one["state"], places(one), one["memory"]["own"], one["memory"]["shared"])
            alike.setdefault(key, []).append(one)
    groups = {key: found for key, found in alike.items() if len(found) >= _ALIKE}
    gone = {one["id"] for found in groups.values() for one in found}
    lines = []
    for (base, state, on, own, _), found in groups.items():
        names = f"{found[0]['id']} ... {found[-1]['id']}"
        of, where = f" of {base}" if base else "", f" on {on}" if on else ""
        each = f"; {size(own)} each" if own else ""
        lines.append(f"{names}: {len(found)} idle adapters{of}; {state}{where}{each}")
    return [one for one in applications if one["id"] not in gone], lines


def saving_line(view: View) -> str:
    """Return the memory of all models together. The models' own shared parts overlap, so no total can be made of them."""
    # an id that chooses among tiers is no model, and neither is a chain that no client can name
    models = sum(one["state"] != "chooses" and is_named(one) for one in view["applications"])
    return saving(models, **view["parameters"])


def _autoscale(scaled: View) -> list[str]:
    """Return the number of wanted workers, and the reason of the last change."""
    launched = launcher_lines(scaled)
    if scaled["mode"] == "off":
        return launched
    count, last = scaled["workers"], scaled["last"]
    said = f"autoscale ({scaled['mode']}, {scaled['limit']:g} s): {count['wanted']} workers wanted"
    said += "".join(f", {count[stage]} {stage}" for stage in ("starting", "draining") if count[stage])
    return ["", said, *([f"  {last['decision']}: {last['why']}"] if last else []), *launched]


def launcher_lines(scaled: View) -> list[str]:
    """Return the number of workers that is asked of a launcher elsewhere. Servers of earlier releases have none."""
    if scaled.get("launcher", "local") == "local":
        return []
    asked = scaled["asked"]
    return [f"launcher {scaled['launcher']}: {asked} further worker{'s' * (asked != 1)} wanted"]


def card_lines(cards: Iterable[View]) -> list[str]:
    """Return a line for each card that workers compute on: memory of all its programs, use, power, what holds it down."""
    lines = []
    for card in cards:
        memory = card["memory"]
        said = [f"{size(memory['total'] - memory['free'])} of {size(memory['total'])} used"]
        if card["use"] is not None:
            said.append(f"{share(card['use'])} busy")
        if card["power"] is not None:
            limit = card["power_limit"]
            said.append(f"{card['power']:.0f} W" if limit is None else f"{card['power']:.0f} of {limit:.0f} W")
        said += [f"held down by {why}" for why in card["throttled"]]
        said += [f"{card['errors']} memory errors not corrected"] if card["errors"] else []
        lines.append(f"{card['id']} ({card['name']}): {', '.join(said)}")
    return ["", *lines] if lines else []


def overload_lines(drops: View | None) -> list[RenderableType]:
    """Return the workers that have dropped parameters for KV, and the last change."""
    if drops is None:
        return []
    groups = FittedTable(
        ("WORKER", "GROUP", "IS", "COMPONENTS", "PARAMETERS", "+ KV", "OF"),
        [
            (
                *(one["id"], one["group"] or "-", one["state"]),
                "all" if one["first"] is None else f"{one['first']} to {one['last'] - 1}",
                *(size(one["memory"][name]) for name in ("parameters", "kv", "budget")),
            )
            for one in drops["workers"]
        ],
        numbers=3,
    )
    return ["", groups, *(change_line(drops[name]) for name in ("last", "lacking") if drops[name])]


def change_line(last: View) -> str:
    """Return a sentence on a drop, a restore or another change."""
    at = time.strftime("%H:%M:%S", time.localtime(last["at"]))
    if last["what"] == "lacking":
        return f"{at}: short of {size(last['bytes'])} of KV memory, which no drop can free: {last['why']}"
    said = f"last change, {at}: {last['what']} of {last['group']}"
    if last["bytes"]:
        said += f", {size(last['bytes'])} freed"
    said += ", under way" if last["seconds"] is None else f", took {milliseconds(last['seconds'])}"
    if last["requests"]:
        stalled = f"{milliseconds(last['stall'])} in all, {milliseconds(last['stall_worst'])} at worst"
        count = last["requests"]
        said += f"; {count} request{'s' * (count != 1)} moved to other routes, and paused {stalled}"
    return f"{said}: {last['why']}"


def top_tables(view: View) -> Screenful:
    hidden, on_host = (any(one[name] for one in view["workers"]) for name in ("hidden", "on_host"))
    columns = (*(("HIDDEN",) if hidden else ()), *(("ON HOST",) if on_host else ()))
    where = whereabouts(view["workers"])
    workers = FittedTable(
        ("WORKER", "STATE", *where, "RUN", "WAIT", "KV", "CACHED", "HITS", *columns),
        [
            (
                *(one["id"], one["state"]),
                *(shown(one) for shown in where.values()),
                *(str(one["running"]), str(one["waiting"])),
                *(share(one[name]) for name in ("kv_used", "kv_cached", "cache_hits")),
                *((share(one["hidden"]),) if hidden else ()),
                *((share(one["on_host"]),) if on_host else ()),
            )
            for one in view["workers"]
        ],
        numbers=5 + hidden + on_host,
    )
    held = in_memory([one["parameters"] for one in view["workers"]])
    more_lines = [*card_lines(view["cards"]), *overload_lines(view["overload"])]
    head = Group(
        total_line(view),
        saving_line(view),
        held,
        "",
        workers,
        *member_tables(view),
        *more_lines,
        "",
    )
    short = _grouped(view["applications"], _busy)
    more = [*batch_lines(view["batches"]), *load_tables(view["families"], view["drafts"])]
    listed = Group(_busy(view["applications"]), *more)
    return Screenful(head, listed, None if short is None else Group(short, *more))


def _busy(applications: Iterable[View]) -> FittedTable:
    return FittedTable(
        ("MODEL", "STATE", "RUN", "WAIT", "TOK/S", "PROMPT/S", "TTFT P50", "P95", "KV", "SHARED", "HITS"),
        [
            (
                *(one["id"], one["state"], str(one["running"]), str(one["waiting"])),
                *(rate(one[name]) for name in ("tokens_per_s", "prompt_tokens_per_s")),
                *(milliseconds(one[name]) for name in ("ttft_p50", "ttft_p95")),
                *(share(one[name]) for name in ("kv_used", "shared", "cache_hits")),
            )
            for one in applications
        ],
        numbers=9,
        least=("STATE", "SHARED", "PROMPT/S"),
    )


def ready_line(view: View) -> str:
    """Return the numbers of running and waiting requests, and of ready workers."""
    running, waiting = (sum(one["requests"][name] for one in view["applications"]) for name in ("running", "waiting"))
    return f"{running:,} running, {waiting:,} waiting; {_ready(view)}"


def _ready(view: View) -> str:
    ready = sum(one["state"] == "ready" for one in view["workers"])
    return f"{ready} of {len(view['workers'])} workers ready"


def total_line(view: View) -> str:
    """Return the load of the whole server."""

    def total(name: str) -> float:
        return sum(float(one[name]) for one in view["applications"])

    return (
        f"{total('running'):,.0f} running, {total('waiting'):,.0f} waiting; {rate(total('tokens_per_s'))} tokens/s, "
        f"{rate(total('prompt_tokens_per_s'))} of prompts; {_ready(view)}"
    )


def batch_lines(batches: list[View]) -> list[RenderableType]:
    """Return the table of batches; nothing if none runs."""
    if not batches:
        return []
    shown = FittedTable(
        ("BATCHES OF", "DONE", "RUN", "WAIT", "TIME LEFT", "DENSITY", "SHARED", "KV LEFT", "KV RIGHT"),
        [
            (
                *(one["model"], *(f"{one[name]:,}" for name in ("done", "running", "waiting"))),
                duration(one["remaining_seconds"]) or "-",
                *(f"{one['density']:.3g}", share(one["sharing"])),
                *(share(one["sides"][side]["used"] / max(one["sides"][side]["most"], 1)) for side in ("left", "right")),
            )
            for one in batches
        ],
        numbers=8,
        least=("DENSITY", "KV LEFT", "KV RIGHT"),
    )
    return ["", shown]


def app_tables(answer: Mapping[str, Any]) -> Screenful:
    """Return the models by state. Idle adapters of one folder share a line on a screen that is too short."""
    found: Mapping[str, Mapping[str, Any]] = answer["applications"]
    rows = [(name, one["state"], one["base"] or "-", one["checkpoint"]) for name, one in found.items()]
    states = Counter(state for _, state, _, _ in rows)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    summary = f"{len(rows)} model{'s' * (len(rows) != 1)}: {counted}"
    families = {name: one.get("family", "") for name, one in found.items()}
    head = Group(summary, default_line(answer.get("default", ""), families), *family_lines(families), "")
    single, lines = _folders_of_adapters(rows)
    return Screenful(head, _app_table(rows), Group(_app_table(single), *lines) if lines else None)


def _app_table(rows: Sequence[AppRow]) -> FittedTable:
    return FittedTable(("APPLICATION", "STATE", "BASE", "CHECKPOINT"), rows, numbers=0, least=("BASE", "STATE"))


def _folders_of_adapters(rows: Iterable[AppRow]) -> tuple[list[AppRow], list[str]]:
    """Return the single models, and a line for adapters that differ in their name alone, which their folders have, too."""

    def kind(row: AppRow) -> tuple[str, str, str]:
        name, state, base, checkpoint = row
        folder, last = os.path.split(checkpoint)
        return (state, base, folder) if base != "-" and last == name else (name, "", "")

    single, lines = list[AppRow](), list[str]()
    for (state, base, folder), group in itertools.groupby(rows, kind):
        alike = list(group)
        if len(alike) < _ALIKE:
            single += alike
        else:
            lines.append(f"{alike[0][0]} ... {alike[-1][0]}: {len(alike)} adapters of {base}; {state}; in {folder}")
    return single, lines


def request_tables(view: Mapping[str, Any]) -> Screenful:
    """Return running and waiting requests, then ended ones, with tenants if there are any. Prefill and answers in tokens."""
    tenants = any(one.get("tenant") for one in view["data"])  # servers of earlier releases do not report tenants
    rows = [
        (
            one["id"],
            *((one["tenant"] or "-",) if tenants else ()),
            one["model"],
            f"waiting, place {one['place']}" if one["state"] == "waiting" and one["place"] else one["state"],
            one["home"] or "-",
            f"{min(one['computed_tokens'], one['prompt_tokens']):,} of {one['prompt_tokens']:,}",
            f"{one['emitted_tokens']:,}",
            f"{one['age']:,.1f} s",
        )
        for one in view["data"]
    ]
    columns = ("REQUEST", *(("TENANT",) if tenants else ()), "MODEL", "STATE", "ON", "PREFILL", "TOKENS", "TIME")
    table = FittedTable(columns, rows, numbers=3, least=("PREFILL", "ON", "MODEL"))
    return Screenful(Group(_request_counts(view["data"]), ""), table) if rows else Screenful("no requests yet", Group())


def _request_counts(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary of the rows, since the screen may be too short for all of them."""
    running, waiting = (sum(one["state"] == state for one in found) for state in ("running", "waiting"))
    note = f"; only the latest {ASKED:,} are listed" if len(found) >= ASKED else ""
    return f"{running:,} running, {waiting:,} waiting, {len(found) - running - waiting:,} ended recently{note}"


def tenant_tables(view: View) -> Screenful:
    """Return weight, requests, tokens, KV and refusals of each tenant, and the use of its limits.

    The column of a limit is left out if no tenant has it.
    """
    tenants = view["tenants"]
    limits = [limit for limit in _LIMIT_COLUMNS if any(limit in one["limits"] for one in tenants)]
    rows = [
        (
            one["tenant"] or "all together",
            "-" if one["weight"] is None else str(one["weight"]),
            *(f"{one['requests'][name]:,}" for name in ("running", "waiting", "started")),
            f"{sum(one['refused'].values()):,}",
            f"{one['tokens']:,}",
            size(one["kv"]["bytes"]) + (f" of {size(one['kv']['cap'])}" if one["kv"]["cap"] is not None else ""),
            *(_limit_use(one["limits"].get(limit)) for limit in limits),
        )
        for one in tenants
    ]
    columns = (
        "TENANT",
        "WEIGHT",
        "RUN",
        "WAIT",
        "STARTED",
        "REFUSED",
        "TOKENS",
        "KV+CACHED",
        *(_LIMIT_COLUMNS[limit] for limit in limits),
    )
    table = FittedTable(columns, rows, numbers=len(columns) - 1, least=("STARTED", "TOKENS", "WEIGHT"))
    running, waiting = (sum(one["requests"][name] for one in tenants) for name in ("running", "waiting"))
    said = f"{len(tenants)} tenant{'s' * (len(tenants) != 1)}; {running:,} running, {waiting:,} waiting"
    return Screenful(Group(said, ""), table) if rows else Screenful("no tenants: the server tells of none", Group())


def _limit_use(standing: Mapping[str, Any] | None) -> str:
    """Return the use of a limit."""
    return "-" if standing is None else f"{standing['used']:,} of {standing['allowed']:,}"


def actors_tables(view: View) -> Screenful:
    """Return the nodes, and all actors as the supervision tree."""
    nodes = FittedTable(
        ("NODE", "LIFE", "ACTORS", "PEERS", "LAG", "DEAD LETTERS", "DROPPED"),
        [
            (
                node["name"],
                *(str(node[key]) for key in ("incarnation", "actors", "peers")),
                milliseconds(node["lag"]),
                *(str(node[key]) for key in ("dead_letters", "dropped")),
            )
            for node in view["nodes"]
        ],
        numbers=6,
    )
    actors = FittedTable(
        ("ACTOR", "KIND", "STATE", "FOR", "WAIT", "URGENT", "OLDEST", "BESIDE", "HANDLED", "FAILED", "RESTARTS"),
        [
            (
                f"{'  ' * row['depth']}{actor_address(row)}#{row['life']}",
                row["kind"],
                _actor_state(row),
                milliseconds(row["current_age"] if row["current"] else None),
                str(row["normal"]["depth"]),
                str(row["urgent"]["depth"]),
                milliseconds(max(row["normal"]["oldest"], row["urgent"]["oldest"]) if _mail_waiting(row) else None),
                *(str(row[key]) for key in ("beside", "handled", "failed", "restarts")),
            )
            for row in view["actors"]
        ],
        numbers=8,
        least=("BESIDE", "URGENT", "OLDEST", "FAILED", "FOR", "KIND"),
    )
    return Screenful(Group(nodes, ""), actors)


def _actor_state(row: Mapping[str, Any]) -> str:
    missing = ", ".join(f"{name} down: {why}" for name, why in row["missing"].items())
    return row["ending"] or missing or row["current"] or "idle"


def _mail_waiting(row: Mapping[str, Any]) -> int:
    depth: int = row["normal"]["depth"] + row["urgent"]["depth"]
    return depth

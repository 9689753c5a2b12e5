"""The chain that serves a request, its own or a variant: what is known of the routes, and changes from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...adaptive.similarity import OWNER
from ...model.chain import Route
from ..dispatch import UNKNOWN, ComparedRoute, RouteQuery, compared, loading, open_routes
from ..kv_dispatch import copied_part, weighed
from ..poison import Quarantine
from ..routing_table import RoutingTable
from ..standing import Standing
from .parts import BookParts
from .record import RequestRecord

GONE = "its chain has no route any more"
ABSENT = "its model has no route now"
LOADING = "its model is being loaded on demand"


def query(parts: BookParts, record: RequestRecord, now: float, *, anywhere: bool = False) -> RouteQuery:
    """Return the facts that decide a request's route; if its KV counts, with what workers have of it.

    anywhere: it runs, and may leave its chain. A chain whose routes have ended is left in any case, if switches are wanted.
    """
    table = parts.table
    own = record.generation.application
    stuck = bool(parts.chains.limit and record.varies and not table.routes.get(record.application))
    others = table.variants.get(own, ()) if anywhere or stuck or record.adaptive else ()
    wanted = record.wanted(now, [name for name in (own, *others) if name != record.application] if others else ())
    if not (wanted.variants or parts.rules.knows_kv) or record.offline:
        return wanted
    cached = dict[str, int]()
    for name in (wanted.application, *wanted.variants):  # KV is copied between routes of one chain
        cached |= weighed(parts.rules.kv, known_kv(parts, record, name), copied_kv(parts, name))
    return replace(wanted, cached=cached, target=parts.rules.target if wanted.variants else 0.0)


def known_kv(parts: BookParts, record: RequestRecord, application: str) -> dict[str, int]:
    """Return the leading tokens of a request whose KV workers are known to have, by route of an application."""
    table, size = parts.table, parts.page_size
    hashes = [] if record.progress.unscored else record.hashes(size)[: (len(record.progress.tokens) - 1) // size]
    routes = table.routes.get(application)
    if not (hashes and routes):
        return {}  # a chain without routes may be known by its name alone
    lineage = parts.pages.lineage(table.chains[application])
    return {route.id: size * parts.pages.leading(route.home, lineage, hashes) for route in routes}


def copied_kv(parts: BookParts, application: str) -> float:
    """Return the part of KV elsewhere that is as good as there (``kv_dispatch.py``); 0 while paces or links are unknown."""
    if not parts.rules.knows_kv:
        return 0.0
    nbytes, _ = parts.table.sizes.get(application, (0, 0))
    return copied_part(parts.table.paces.measured.seconds(nbytes), copy_seconds(parts, application))


def copy_seconds(parts: BookParts, application: str) -> float:
    """Return the seconds in which KV of a token is copied between workers; 0: unknown, or it has no route."""
    table = parts.table
    if not table.routes.get(application) or table.link is None or not table.link.bandwidth:
        return 0.0
    layouts = [one.kv for one in table.chains[application].components if one.kv is not None]
    return sum(layout.raw_bytes for layout in layouts) / parts.page_size / table.link.bandwidth


def note_pages(parts: BookParts, record: RequestRecord) -> None:
    """Note the pages that a request's worker has of it, or will have, if they count.

    What scoring leaves there decides about no route."""
    table, route = parts.table, record.placement.route
    if route is None or record.generation.key == OWNER:
        return
    if not (parts.rules.knows_kv or record.variant or route.application in table.variants):
        return
    if (chain := table.chains.get(route.application)) is None:
        return
    hashes = record.hashes(parts.page_size)[: (len(record.progress.tokens) - 1) // parts.page_size]
    room = table.capacity.get(route.id, UNKNOWN) // parts.page_size
    parts.pages.note(route.home, parts.pages.lineage(chain), hashes, room)


def standings(wanted: RouteQuery, routes: Sequence[Route], table: RoutingTable) -> dict[str, Standing]:
    """Return the standing of each route by id, for a dispatcher; nothing if neither variants nor KV count for it."""
    matters = wanted.variants or wanted.cached
    return {one.route.id: one.standing for one in compared(wanted, routes, table)} if matters else {}


def reason(wanted: RouteQuery, route: Route, table: RoutingTable, quarantine: Quarantine) -> str:
    """Return why a route of a variant is taken in place of the model's own chain."""
    routes = compared(wanted, open_routes(wanted, table, quarantine), table)
    if (bridged := _bridged(wanted, routes, route, table)) is not None:
        return bridged
    own = min((one for one in routes if one.route.application == wanted.application), key=lambda one: one.key, default=None)
    taken = next((one for one in routes if one.route.id == route.id), None)
    if own is None or taken is None:
        return ABSENT
    if own.standing.short > taken.standing.short:
        return f"its model lacks memory for {own.standing.short} tokens"
    if own.standing.late and not taken.standing.late:
        return f"its model would give the first token after {own.estimate.start:.2f} s, later than {wanted.target:g} s"
    less = taken.standing.rank > 0 and own.standing.late
    but = f"no chain gives the first token within {wanted.target:g} s, so a less accurate one may serve: " if less else ""
    if taken.standing.owns and not own.standing.owns:
        return f"{but}its worker has KV of {wanted.cached[route.id]} of {wanted.known} tokens"
    unit = " s" if own.estimate.exact else " tokens"
    return f"{but}an estimate of {taken.estimate.total:.4g}{unit} against {own.estimate.total:.4g}{unit}"


def _bridged(wanted: RouteQuery, routes: Sequence[ComparedRoute], route: Route, table: RoutingTable) -> str | None:
    """Return why a variant's route bridges the load of the model's own chain; None: it does not."""
    if not table.absent(wanted.application):
        return None
    taken = next(one for one in routes if one.route.id == route.id).estimate
    unit = " s" if taken.exact else " tokens"
    own = loading(wanted, table)
    if own is None:
        return f"{LOADING}: an estimate of {taken.total:.4g}{unit} here"
    return f"{LOADING} for about {own.load:.3g} s: an estimate of {taken.total:.4g}{unit} against {own.total:.4g} s"


def vary(
    parts: BookParts,
    record: RequestRecord,
    application: str,
    now: float,
    why: str,
    estimates: tuple[float, float] | None = None,
) -> None:
    """Have a request served by a variant of its application, or by the application again.

    estimates: as in ``RequestRecord.vary``.
    """
    if record.switches(estimates):
        key = record.model, "route" if estimates is None else "gain"
        switches = parts.choices.figures.switches
        switches[key] = switches.get(key, 0) + 1
    if record.variant:
        parts.usage.change(record.variant, -1, now)
    record.vary(application, now, why, estimates)
    if record.variant:
        parts.usage.change(record.variant, 1, now)
    parts.choices.figures.served(record.model, record.variant)

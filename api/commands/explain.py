"""The command ``explain``: a request's history in words, from the body of ``/v1/requests/{id}``.

The history has the request's events, the time of each phase, and the reasons for its route: the candidates, the forecast for
each, and the outcome. Its times are seconds since the request arrived. Seconds of a dispatch count from the query to a
dispatcher.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ...policies.drafts.options import MODEL, TIER
from . import CommandError
from .connection import UNKNOWN, add_url, connected
from .output import print_json, similarity_text

View = Mapping[str, Any]
PREEMPTED = "preempted: its memory was needed; its tokens will be recomputed"
PREEMPTED_BY_URGENT = "preempted: an urgent request took its row; what memory does not keep will be recomputed"
_ENDS = ("finished", "failed", "cancelled")
_LOST = ("paused", "failover")  # phases in which no work is done for the request
_HEAD = ("route", "load", "running", "waiting", "free", "cached", "in flight", "first token", "last token", "others lose")
_COUNTS = ("running", "waiting", "free_blocks", "cached_blocks", "in_flight")  # None: the worker was not queried
REASONS = {
    "no_forecast": "no candidate had a forecast, so that the policy's fallback chose",
    "poor_estimates": "answer lengths were estimated too badly for forecasts, so that the policy's fallback chose",
    "no_answer": "no predictor answered in time: the gateway chose by outstanding work",
    "dispatcher_late": "the dispatcher did not answer in time: the gateway chose by outstanding work",
    "dispatcher_dead": "the dispatcher was down: the gateway chose by outstanding work",
    "route_gone": "the route that was chosen was not open any more: the gateway chose by outstanding work",
}


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="id of the answer, or the client's x-request-id")
    parser.add_argument(
        "--last", action="store_true", help="the latest request of your key (an admin key: of all), instead of ID"
    )
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")


def explain(arguments: argparse.Namespace) -> int:
    """Show what happened to a request: candidates, queue, prefill, workers,
    preemptions, failovers, and where its time went.

    ID is the id of the answer, or the x-request-id that the client sent. A server
    remembers the last thousand finished requests. A key sees its own requests, an
    admin key sees all.
    """
    if (arguments.id is None) != arguments.last or (arguments.id is not None and not arguments.id.strip(".")):
        raise CommandError("give the ID of a request, or --last; 'blockwright ps --requests' lists them", 2)
    with connected(arguments, (*UNKNOWN, "not_found")) as session:
        id = _latest(session.get("/v1/requests?limit=1", holds="data")["data"]) if arguments.id is None else arguments.id
        view = session.get(f"/v1/requests/{quote(id, safe='', errors='surrogateescape')}", holds="state")
    if arguments.json:
        print_json(view)
    else:
        print("\n".join(report(view)))
    return 0


def _latest(lines: list[dict[str, Any]]) -> str:
    """Return the id of the first listed request: one that runs or waits, or else one that has ended."""
    if not lines:
        raise CommandError("there is no request yet; send one and try again")
    return str(lines[0]["id"])


def report(view: View) -> list[str]:
    """Return the lines that ``blockwright explain`` prints."""
    events = view["events"]
    tokens = f"{view['prompt_tokens']:,} prompt tokens, {view['emitted_tokens']:,} emitted"
    attempts = f"{view['attempt']} attempt{'s' if view['attempt'] != 1 else ''}"
    of = f" of {view['model']}" if view.get("model") else ""
    of += f", tenant {view['tenant']}" if view.get("tenant") else ""  # servers of earlier releases do not report it
    lines = [f"{view['id']}{of}: {view['state']}", *_place(view), f"  {tokens}, {attempts}"]
    lines += [f"{event['at']:9.3f} s  {_sentence(event)}" for event in events]
    spent = phases(events)
    total = sum(seconds for _, seconds in spent)
    lines.append("")
    for name, seconds in spent:
        part = seconds / total if total else 0.0
        lines.append(f"{seconds:9.3f} s  {name:<9} {'#' * round(40 * part)}")
    facts = []  # servers of earlier releases do not report them
    if tier := view.get("tier"):
        facts.append(tier_line(tier))
    facts += chain_lines(view.get("chains", ()))
    facts += map(switch_line, view.get("switches", ()))
    if entered := view.get("entered"):
        facts.append(entered_line(entered, view["prompt_tokens"]))
    if service := view.get("service"):
        facts.append(service_line(service))
    if parked := view.get("parked_steps"):
        facts.append(parked_line(parked, view.get("parked_seconds")))
    if guesses := view.get("guesses"):
        facts.append(guess_line(guesses))
    if drafts := view.get("drafts"):
        facts += draft_lines(drafts, ended=view["state"] not in ("waiting", "running"))
    facts += claim_lines(view.get("claims", ()))
    lines += ["", *facts] if facts else []
    if dispatch := view.get("dispatch"):  # servers of earlier releases do not report it
        lines += ["", *decision(dispatch)]
    return lines


def claim_lines(claims: Sequence[View]) -> list[str]:
    """Return a line for each claim on components of the request's model on the workers of its route."""
    paused = [f", takes no new requests ({', '.join(one['paused_by'])})" if one["paused_by"] else "" for one in claims]
    loading = ["" if one["held"] else ", not all of them are loaded" for one in claims]
    return [
        f"  {one['worker']} has components {one['first']} to {one['last'] - 1} for {one['by']}: {one['why']}{there}{closed}"
        for one, there, closed in zip(claims, loading, paused, strict=True)
    ]


def chain_lines(chains: Sequence[View]) -> list[str]:
    """Return a line for each choice on the chain that serves it; none for a request that no variant has served."""
    if not any(one["why"] for one in chains):
        return []
    lines = []
    for one in chains:
        of = f" of choice {one['choice']}" if len(chains) > 1 else ""
        if one["used"] == one["listed"]:
            lines.append(f"  chain{of}: {one['listed']}, its own{_because(one['why'])}")
        else:
            donors = one.get("donors", ())  # servers of earlier releases do not report it
            by = f", with blocks of {' and '.join(donors)}" if donors else ""
            lines.append(f"  chain{of}: {one['used']} in the place of {one['listed']}{by}{_because(one['why'])}")
        if found := one.get("similarity"):
            lines.append(f"  similarity{of}: {similarity_text(found, one['listed'])}")
    return lines


def _because(why: str) -> str:
    return f": {why}" if why else ""


def tier_line(tier: View) -> str:
    """Return the line on the choice of a request's tier."""
    if not tier["tier"]:
        return f"  tier: not chosen yet, starts on {tier['start']}"
    sure = f"{tier['measure']} confidence {tier['confidence']:.3f} of {tier['tokens']} tokens, theta {tier['theta']:g}"
    up = f", escalated from {tier['start']}" if tier["escalated"] else ""
    return f"  tier: {tier['tier']}{up} ({sure}, chosen after {tier['seconds']:.3f} s)"


def parked_line(steps: int, seconds: float | None) -> str:
    """Return the line on the steps of lower tiers that a request sat out. Earlier releases do not report ``seconds``."""
    time = "" if seconds is None else f"{seconds:.3f} s, "
    return f"  parked: {time}{steps:,} step{'s' * (steps != 1)} in which lower tiers went on alone"


def service_line(service: View) -> str:
    """Return the line on a request's service class and account."""
    tier = f", tier {service['tier']}" if service["tier"] else ""
    risen = f", risen by {service['risen']}" if service["risen"] else ""
    times = "once" if service["yielded"] == 1 else f"{service['yielded']} times"
    gave = f"; gave its row to urgent requests {times}" if service["yielded"] else ""
    return f"  class: {service['asked']}{risen}; account {service['account']}{tier}{gave}"


def entered_line(entered: Mapping[str, int], prompt: int) -> str:
    """Return the line on the prompt tokens that began at an exit. ``entered``: tokens by the layers before the exit."""
    by_depth = sorted(entered.items(), key=lambda item: int(item[0]))
    parts = [f"{tokens:,} began behind layer {layers}" for layers, tokens in by_depth]
    return f"  of a prompt of {prompt:,} tokens {', '.join(parts)}: a lower tier had computed the layers below"


def guess_line(guesses: View) -> str:
    """Return the line on guesses of a request's hidden states."""
    made, accepted = guesses["made"], guesses["accepted"]
    what = "its text is approximate" if guesses["approximate"] else "its text is exact"
    return f"  guesses of hidden states: {made:,} made, {accepted:,} accepted; {what}"


def draft_lines(drafts: View, *, ended: bool = False) -> list[str]:
    """Return the lines on a request's drafts: the counts of each source, and the reason if there are none.

    ``ended``: the request has ended.
    """
    lines = []
    for source, counts in drafts["sources"].items():
        rounds = counts["rounds"]
        drafted = counts["drafted"]
        accepted = counts["accepted"]
        share = f" ({100 * accepted / drafted:.0f} %)" if drafted else ""
        mean = f"{1 + accepted / rounds:.2f} tokens a step in {rounds:,} step{'s' if rounds != 1 else ''}"
        by = " or ".join(drafts.get("tiers", ())) if source == TIER else ""
        origin = f"a lower tier ({by})" if by else f"the {source}"
        origin = drafts["model"] if source == MODEL and drafts.get("model") else origin
        lines.append(f"  drafts from {origin}: {drafted:,} verified, {accepted:,} accepted{share}, {mean}")
    if drafts["reason"]:
        by = " by a tier" if drafts.get("tiers") and (drafts["prompt"] or drafts["prediction_tokens"]) else ""
        by = f" by {drafts['model']}" if drafts.get("model") else by
        lines.append(f"  no drafts{by}{' any more' if lines and not by else ''}: {drafts['reason']}")
    return lines or [f"  no drafts{'' if ended else ' so far'}: no step had any to verify"]


def _place(view: View) -> list[str]:
    """Return the request's place in the queue and its expected start, by the recent rate; none for a started request."""
    if not view.get("place"):
        return []
    starts = view["starts_in"]
    forecast = "" if starts is None else f", starts in about {starts:.0f} s"
    return [f"  at place {view['place']} of {view['queued']}{forecast}"]


def phases(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the seconds in each phase; the last event's time is their sum. An empty phase is left out.

    The phases are queue, prefill, decode, paused (it is preempted, or its pages are in transfer), and failover (from the
    loss until the next worker has planned the request again).
    """
    spent = dict.fromkeys(("queue", "prefill", "decode", "paused", "failover"), 0.0)
    phase = "queue"
    since = 0.0
    before = "queue"
    preempted = False  # the pause is the wait of a preempted request, which ends with its next start
    for event in events:
        name, at = event["event"], event["at"]
        turn = phase
        if name == "first_plan":
            turn = "prefill"
        elif name == "first_token" or (name == "resumed" and "decode" in (before, phase)):
            turn = "decode"
        elif name == "tier_chosen" and event["up"]:
            turn = "queue"
        elif name == "resumed":
            turn = "prefill"
        elif name == "prefill" and preempted and phase == "paused":
            turn = before
        elif name in ("worker_died", "returned", "gap") and phase != "queue":
            turn = "failover"
        elif name in ("paused", "preempted") and phase != "queue":
            turn = "paused"
            preempted = name == "preempted"
        spent[phase] += at - since
        since = at
        if turn in _LOST and phase not in _LOST:
            before = phase
        phase = turn
    return [(name, seconds) for name, seconds in spent.items() if seconds > 0]


def _chain_sentence(event: Mapping[str, Any]) -> str:
    used, listed = event["used"], event["listed"]
    why = event.get("why", "")
    after = f" after {event['position']:,} tokens of the answer" if "position" in event else ""
    if used == listed:
        return f"goes back to the chain of {listed}{after}: {why or 'its variant has no route any more'}"
    return f"is served by {used} in the place of {listed}{after}: {why or 'less work is ahead there'}"


def _numerics_sentence(event: Mapping[str, Any]) -> str:
    again = f"its {event['tokens']:,} tokens are computed again with those of {event['target']}"
    return f"no worker with the numerics {event['source']} is left for it: {again}"


def _switched(event: Mapping[str, Any]) -> str:
    done = f"{event['cached']:,} tokens found there, {event['recomputed']:,} recomputed"
    return f"went over from {event['source']} to {event['target']}: {done}, paused {1000 * event['paused']:.0f} ms"


def switch_line(switch: Mapping[str, Any]) -> str:
    """Return the estimates of a switch and its outcome as one line."""
    of = f" of choice {switch['choice']}" if switch.get("choice") else ""  # earlier releases report those of the first only
    since = "since " if switch["go"] is None else ""
    took = "" if switch["took"] is None else f"; it took {switch['took']:.2f} s"
    where = f"from {switch['source']} to {switch['target']} after {switch['position']:,} tokens"
    return f"  switch{of}: {where}, {since}{switch['why']}{_found(switch)}{took}"


def _found(switch: Mapping[str, Any]) -> str:
    """Return what the first report of the new chain has shown of a switch that was forced; others are events."""
    if switch["go"] is not None or not (found := switch.get("outcome")):
        return ""
    paused = f"paused {1000 * found['paused']:.0f} ms"
    return f": {found['cached']:,} tokens found there, {found['recomputed']:,} recomputed, {paused}"


def _moved(event: Mapping[str, Any]) -> str:
    if not (event["pages"] or event["recomputed"] or event["paused"]):
        return f"moved from {event['source']} to {event['target']}: nothing had been computed"
    why = f" ({event['reason']})" if "reason" in event else ""
    done = f"{event['pages']:,} pages copied, {event['recomputed']:,} tokens recomputed"
    return f"moved from {event['source']} to {event['target']}: {done}, paused {1000 * event['paused']:.0f} ms{why}"


def _copies(event: Mapping[str, Any]) -> str:
    """Return the sentence on copies of a request's pages: it moves, or has just begun."""
    ends = f"from {event['source']} to {event['target']}"
    if event["event"] == "moving":
        return f"moves {ends}: {event['pages']:,} pages are copied meanwhile"
    return f"{event['pages']:,} pages of it are copied {ends} while it computes"


def _sentence(event: Mapping[str, Any]) -> str:
    name = event["event"]
    match name:
        case "arrived":
            expected = f", {event['expected_tokens']:,} expected" if "expected_tokens" in event else ""
            rest = f"at most {event['max_tokens']:,} to come{expected}" if event["max_tokens"] else "for a vector"
            return f"arrived with {event['prompt_tokens']:,} tokens, {rest}"
        case "queued":
            return f"queued behind {event['ahead']:,}" if event["ahead"] else "queued, first in line"
        case "asked":
            back = f", fell back: {event['fell_back']}" if event["fell_back"] else ""
            return f"a dispatcher was asked for {1000 * event['seconds']:.1f} ms ({event['policy'] or 'no policy'}{back})"
        case "dispatched":
            hops = " -> ".join(f"{hop['worker']} [{hop['first']}:{hop['last']}]" for hop in event["hops"])
            return f"attempt {event['attempt']} on {hops}"
        case "chain" | "numerics":
            return _chain_sentence(event) if name == "chain" else _numerics_sentence(event)
        case "first_plan":
            return "started on its worker"
        case "resumed":
            return f"attempt {event['attempt']} continues where the last one ended"
        case "prefill":
            cached = f", {event['cached']:,} of them found in the cache" if event["cached"] else ""
            return f"prefill: {event['computed']:,} of {event['of']:,} tokens{cached}"
        case "first_token":
            return "first token"
        case "vector":
            return "its vector was given"
        case "preempted":
            return PREEMPTED_BY_URGENT if event.get("for") == "urgent" else PREEMPTED
        case "risen":
            return f"rose to class {event['to']} by its wait"
        case "worker_died":
            return f"worker {event['worker']} died ({event['cause']})"
        case "returned":
            return f"returned by its worker ({event['reason']})"
        case "rerouted":
            return f"goes from {event['source']} to {event['target']} before anything was computed: {event['reason']}"
        case "moving" | "copying":
            return _copies(event)
        case "paused":
            return f"pauses while its pages go from {event['source']} to where they are needed: {event['reason']}"
        case "moved":
            return _moved(event)
        case "switched":
            return _switched(event)
        case "not_moved":
            return f"stays where it is: {event['reason']}"
        case "tier_chosen":
            sure = f"confidence {event['confidence']:.3f}, {event['theta']:g} is enough"
            return f"{sure}: goes up to {event['tier']}" if event["up"] else f"{sure}: stays on {event['tier']}"
        case "gap":
            return f"tokens were lost on the way (expected {event['expected']}, got {event['got']}); computed again"
        case _ if name in _ENDS:
            length = f" (expected {event['expected_tokens']:,} tokens, was {event['tokens']:,})" if "tokens" in event else ""
            return f"{name}: {event['reason']}{length}"
    more = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("at", "event"))
    return f"{name}: {more}" if more else str(name)


def decision(dispatch: Mapping[str, Any]) -> list[str]:
    """Return the lines that ``blockwright explain`` prints of a dispatch."""
    by = f"by {dispatch['policy']} " if dispatch["policy"] else ""
    among = f", rank {dispatch['rank']} of {dispatch['ranked']}" if dispatch["rank"] else ""
    lines = [f"route {_route(dispatch['route'])}, chosen {by}in {1000 * dispatch['seconds']:.1f} ms{among}"]
    if reason := dispatch["fell_back"]:
        lines.append(f"fell back: {REASONS.get(reason, reason)}")
    if silent := ", ".join(f"{count} {why}" for why, count in dispatch["unanswered"].items()):
        lines.append(f"predictors without an answer: {silent}")
    if dispatch["candidates"]:
        rows = [_HEAD, *[_row(candidate) for candidate in dispatch["candidates"]]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            mark = "*" if row[0] == _route(dispatch["route"]) else " "
            cells = [row[0].ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]]
            lines.append(f"{mark} {'  '.join(cells)}".rstrip())
    predicted = next((c["forecast"] for c in dispatch["candidates"] if c["route"] == dispatch["route"]), None)
    lines += [_outcome(name, predicted, dispatch) for name in ("first_token", "last_token") if predicted is not None]
    return lines


def _route(id: str) -> str:
    """Return the model and the workers of a route, without the version of the model in its id."""
    from ...policies.cluster.application_life import model_of

    name, at, workers = id.rpartition("@")
    return f"{model_of(name)}{at}{workers}"


def _row(candidate: Mapping[str, Any]) -> Sequence[str]:
    forecast, load = candidate["forecast"], candidate["load"]
    return (
        _route(candidate["route"]),
        "-" if load is None else " ".join(_number(part) for part in load) or "-",
        *["-" if candidate[name] is None else str(candidate[name]) for name in _COUNTS],
        *["-" if forecast is None else _seconds(forecast[name]) for name in ("first_token", "last_token", "delayed")],
    )


def _outcome(name: str, predicted: Mapping[str, Any], dispatch: Mapping[str, Any]) -> str:
    actual, errors = dispatch["actual"][name], dispatch["error"]
    came = "it has not come" if actual is None else f"it came after {_seconds(actual)}"
    wrong = f" ({errors[name]:.0%} off)" if errors else ""
    return f"{name.replace('_', ' ')}: predicted after {_seconds(predicted[name])}, {came}{wrong}"


def _number(part: float | None) -> str:
    return "never" if part is None else f"{part:.4g}"


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3f} s"

"""The figures of this process's gateway as Prometheus measures: sequences, estimates, dispatch, moves and drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...actors.gateway.peers import TenantUse
from ...actors.gateway.port import Census, DispatchFigures, DraftCounts, LengthFigures, MoveFigures, TierFigures
from ...policies.drafts.options import SOURCES
from ...policies.measures import Measure, counter, gauge, histogram

REASONS = ("capacity", "no_worker", "isolated")  # reasons sequences wait
_DRAFTS = (
    ("vllm:spec_decode_num_drafts", "Steps of ended requests in which drafts were verified.", "rounds"),
    ("vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified in these steps.", "drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "Of these, the tokens that stood.", "accepted"),
)


def census_measures(census: Mapping[str, Census]) -> Iterator[Measure]:
    """Yield the current sequences of each model."""
    running = {model: one.running for model, one in census.items()}
    yield gauge("vllm:num_requests_running", "Sequences that are running on a worker.", running, "model_name")
    waiting = {model: sum(one.waiting.values()) for model, one in census.items()}
    text = "Sequences that wait to start on a worker, or to go on after a preemption or a move."
    yield gauge("vllm:num_requests_waiting", text, waiting, "model_name")
    reasons = {(model, reason): one.waiting.get(reason, 0) for model, one in census.items() for reason in REASONS}
    text = "The same, by what they are waiting for."
    yield gauge("vllm:num_requests_waiting_by_reason", text, reasons, "model_name", "reason")


def tenant_sequences(uses: Mapping[str, TenantUse]) -> Measure:
    states = {(tenant, state): getattr(use, state) for tenant, use in uses.items() for state in ("running", "waiting")}
    return gauge("blockwright:tenant_sequences", "Sequences of a tenant by state.", states, "tenant", "state")


def estimate_measures(figures: LengthFigures) -> Iterator[Measure]:
    seen = figures.accuracy
    for name, text, value in (
        ("length_estimates", "Complete answers with a length estimate.", seen.count),
        ("length_error_tokens", "Total absolute error of these estimates, in tokens.", seen.error),
        ("length_relative_error", "Total relative error of these estimates.", seen.relative),
        ("tagger_unanswered", "Times the tagger did not answer a gateway in time.", figures.unanswered),
    ):
        yield counter(f"blockwright:{name}", text, {(): value})
    text = "Estimates that were off by at most this many tokens."
    yield counter("blockwright:length_estimates_within", text, {"50": seen.within_50, "100": seen.within_100}, "tokens")


def dispatch_measures(figures: DispatchFigures) -> Iterator[Measure]:
    for name, text, numbers in (
        ("dispatch_seconds", "Seconds a request waited for a dispatcher's answer or its timeout.", figures.asked),
        ("dispatch_rank", "Rank of the chosen route among all routes by load, for a sample of requests.", figures.rank),
        ("forecast_ttft_error", "Relative error of the forecast time of the first token.", figures.first_token_error),
        ("forecast_latency_error", "Relative error of the forecast time of the last token.", figures.latency_error),
    ):
        yield histogram(f"blockwright:{name}", text, {(): numbers})
    text = "Requests whose route the dispatch policy could not choose, by reason."
    yield counter("blockwright:dispatch_fallback", text, figures.fallbacks, "reason")
    text = "Times a predictor had no answer for a dispatcher, by reason."
    yield counter("blockwright:dispatch_unanswered", text, figures.unanswered, "reason")


def move_measure(figures: MoveFigures) -> Measure:
    text = "Requests that moved to another worker, by what happened to their KV; abandoned: moves that failed."
    return counter("blockwright:moves", text, figures.outcomes, "outcome")


def variant_measures(figures: TierFigures) -> Iterator[Measure]:
    """Yield the measures of chains that serve in the place of others."""
    text = "Sequences of models with variants, by the variant that took them on (empty: the model's own chain)."
    yield counter("blockwright:variant_requests", text, figures.variants, "model_name", "variant")
    text = "Running requests that went over to another chain, by cause: gain (a shorter estimate, or their model is "
    text += "loaded), or route (theirs had ended)."
    yield counter("blockwright:chain_switches", text, figures.switches, "model_name", "cause")
    text = "Answers of variants that their model's own chain has scored."
    answers = {key: found.answers for key, found in figures.similarity.items()}
    yield counter("blockwright:similarity_answers", text, answers, "model_name", "variant")
    text = "Tokens of these answers, by whether they are the likeliest ones of the model's own chain."
    agreed = {(*key, "yes"): found.agreed for key, found in figures.similarity.items()}
    others = {(*key, "no"): found.tokens - found.agreed for key, found in figures.similarity.items()}
    yield counter("blockwright:similarity_tokens", text, agreed | others, "model_name", "variant", "agreed")


def draft_measures(models: Mapping[str, Mapping[str, DraftCounts]]) -> Iterator[Measure]:
    """Yield the measures of drafts under vLLM's names. ``models``: the counts of each model by source.

    A source has a sample also before its first round, or the first increase would not be seen.
    """
    for name, text, field in _DRAFTS:
        values = {
            (model, source): getattr(counts.get(source, DraftCounts()), field)
            for model, counts in models.items()
            for source in SOURCES
        }
        yield counter(name, text, values, "model_name", "source")


def added(first: Mapping[str, DraftCounts], then: Mapping[str, DraftCounts]) -> dict[str, DraftCounts]:
    """Return the sums of two counts by source."""
    total = dict(first)
    for source, one in then.items():
        total[source] = total.get(source, DraftCounts()).plus(one.rounds, one.drafted, one.accepted)
    return total

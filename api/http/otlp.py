"""Spans of requests, exported by OTLP over HTTP with OpenTelemetry's SDK (the extra ``otlp``). Imported on demand.

This module owns the contents of a span: the GenAI semantic conventions, and vLLM's names where the conventions have none.
The SDK keeps spans in a bounded queue and sends them in batches from a thread of its own. Spans that a collector does not
accept are dropped, and the log says so. Exporting never delays or fails a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context
from opentelemetry.util.types import AttributeValue

from .spans import FinishedRequest

TIMEOUT = 3.0  # seconds that a collector may take, also for the last spans at shutdown
NAME = "llm_request"  # the span name of vLLM


class _Ids(IdGenerator):
    """A generator that returns the span id a request's work already has (``traceparent``), if any. Event loop only."""

    def __init__(self) -> None:
        self._random, self.chosen = RandomIdGenerator(), 0

    def generate_span_id(self) -> int:
        chosen, self.chosen = self.chosen, 0
        return chosen or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id()


class OtlpSpans:
    """An exporter of finished requests.

    ``endpoint``: URL of the collector, such as http://localhost:4318/v1/traces. The environment variables of the SDK
    (OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, ...) apply, too.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "blockwright", "service.version": version})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=TIMEOUT)))
        self._tracer = self._provider.get_tracer("blockwright", version)

    def note(self, request: FinishedRequest) -> None:
        """Export a request that has ended, just now or earlier."""
        parent, context = request.parent, None
        if len(parent) == 25 and len(request.trace) == 25:
            flags = TraceFlags(parent[24])
            asked = SpanContext(int.from_bytes(parent[:16]), int.from_bytes(parent[16:24]), True, flags)
            context = set_span_in_context(NonRecordingSpan(asked))
            self._ids.chosen = int.from_bytes(request.trace[16:24])
        begun = int(request.began * 1e9)
        span = self._tracer.start_span(
            NAME, context, kind=SpanKind.SERVER, attributes=_attributes(request), start_time=begun
        )
        if request.first_token is not None:
            span.add_event("first_token", timestamp=begun + int(request.first_token * 1e9))
        if request.error:
            span.set_status(StatusCode.ERROR, request.error)
        span.end(begun + int(request.seconds * 1e9))

    async def close(self) -> None:
        """Send the queued spans. A collector that does not answer delays this by a few seconds."""
        await asyncio.to_thread(self._provider.shutdown)


def _attributes(request: FinishedRequest) -> Mapping[str, AttributeValue]:
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": "blockwright",
        "gen_ai.request.model": request.model or None,
        "gen_ai.response.model": request.model or None,
        "gen_ai.response.id": request.id or None,
        "gen_ai.request.id": request.id or None,
        "gen_ai.response.finish_reasons": request.reasons or None,
        "gen_ai.latency.e2e": request.seconds,
        "gen_ai.latency.time_in_queue": request.queued,
        "gen_ai.latency.time_to_first_token": request.first_token,
        "http.response.status_code": request.status,
        "error.type": request.error.partition(":")[0] or None,
        "blockwright.tenant": request.tenant or None,
        **{f"gen_ai.request.{name}": value for name, value in request.asked.items()},
    }
    for ours, theirs in (("input", "prompt"), ("output", "completion")):
        count = request.prompt_tokens if ours == "input" else request.tokens
        attributes[f"gen_ai.usage.{ours}_tokens"] = attributes[f"gen_ai.usage.{theirs}_tokens"] = count
    return {name: value for name, value in attributes.items() if value is not None}

"""The HTTP application: its routes, and the steps that all requests pass (keys, request ids, errors in one form).

``make_app`` needs only the gateway port, not the cluster behind it, so that tests can serve from a fake one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging

from aiohttp import HttpVersion11, web

from ...actors.gateway.port import GatewayPort
from ...actors.settings.errors import SettingsError
from ...actors.settings.logs import LogSettings
from ...actors.settings.settings import Settings
from ...gpu.errors import CheckpointError
from ...policies.requests.refusal import RequestRefused
from ...runtime.base.scope import format_traceparent, new_span, parse_traceparent, trace
from ..batches.files import BATCHES
from ..batches.store_service import BatchStoreService
from ..batches.store_thread import open_store
from ..constraints.checker import GrammarChecker
from ..errors import ApiError, bad_request, error_form, error_response, from_http, in_words, of_anthropic
from ..http import expect
from ..http.auth import ApiCaller, Keys, ModelAccess, ServiceClasses
from ..http.body_memory import BodyMemory
from ..http.catalog import Catalog
from ..http.content_encoding import check_encoding
from ..http.context import BEGUN, CALLER, FAULT, FRONT, MODEL, PEER, TRACE, Front
from ..http.cors import Cors
from ..http.headers import answer_id, log_names, mark
from ..http.history import keep
from ..http.hosts import Hosts
from ..http.idempotency import RunsOnce
from ..http.info import REFERENCE
from ..http.limits import TenantLimits
from ..http.metrics import Metrics
from ..http.relay import FAR, FarServer, is_elsewhere, relayed
from ..http.request_log import LEFT, note_call
from ..http.spans import Spans
from ..http.starting import Stages
from ..http.throughput import log_throughput
from ..http.unsupported_routes import instead
from ..text.turn.source import read_turns
from ..version import VERSION
from .endpoint import Handler
from .openapi import document
from .routes import ADMIN, ENDPOINTS, PUBLIC

OTLP = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"  # the packages of the extra otlp, for pip
BODIES = 64 << 20  # bytes for large bodies that are read at the same time
log = logging.getLogger(__name__)


def make_app(
    port: GatewayPort,
    settings: Settings,
    *,
    stages: Stages | None = None,
    far: FarServer | None = None,
) -> web.Application:
    """Return the application. ``stages``: the stages of the start-up. ``far``: the server, if it is on another machine.

    Raise SettingsError for a turn template or a ``batch_dir`` that cannot be used, and for missing packages that a setting
    needs.
    """
    batches, files = open_store(settings.offline), far.files if far is not None else None
    front = Front(
        port=port,
        settings=settings,
        catalog=Catalog(port, settings.requests.max_characters, read_turns(settings.models.turns), files),
        keys=Keys(settings.network.api_keys, settings.network.admin_keys),
        metrics=Metrics(
            port.census,
            models=lambda: [info.id for info in port.models()],
            lengths=port.lengths,
            dispatching=port.dispatching,
            moves=port.moves,
            tiers=port.tiers,
            tenants=port.tenants,
        ),
        max_body=settings.requests.largest_body,
        bodies=BodyMemory(max(BODIES, 2 * settings.requests.largest_body)),
        access=ModelAccess(settings.tenants.tenant_models),
        classes=ServiceClasses(settings.tenants.tenant_classes),
        limits=TenantLimits(port),
        grammars=GrammarChecker(settings.tenants.tenant_weights),
        cors=Cors(settings.network.cors_origins),
        once=RunsOnce(settings.faults.resume_window),
        hosts=Hosts(settings.network),
        stages=stages or Stages(),
        spans=_spans(settings.logs),
    )
    if batches is not None:
        batch_service = BatchStoreService(front, batches)
        front = dataclasses.replace(front, batch_service=batch_service)
        front.metrics.batches = batch_service.figures.values
    app = web.Application(middlewares=[_outermost], client_max_size=settings.requests.largest_body)
    app[FRONT] = front
    app[BATCHES] = batches
    app[FAR] = far
    app[PEER] = []
    app.on_response_prepare.append(mark)
    app.on_cleanup.append(_close)
    app.cleanup_ctx.extend([log_throughput, keep])
    app[REFERENCE] = json.dumps(document(ENDPOINTS, VERSION)).encode()
    posted = [one for one in ENDPOINTS if one.method != "GET"]
    app.add_routes([web.route(one.method, one.path, one.handler) for one in posted])
    read = [one for one in ENDPOINTS if one.method == "GET"]
    app.add_routes([web.get(one.path, one.handler) for one in read])
    return app


def _spans(logs: LogSettings) -> Spans | None:
    """Return the exporter of finished requests, or None if none is configured.

    Raise SettingsError if packages are missing.
    """
    if not logs.otlp_traces_endpoint:
        return None
    try:
        from ..http.otlp import OtlpSpans
    except ImportError as error:
        lacking = f"a package that is not installed ({error.name})"
        raise SettingsError(f"otlp_traces_endpoint needs {lacking}; pip install {OTLP}") from None
    return OtlpSpans(logs.otlp_traces_endpoint, VERSION)


async def _close(app: web.Application) -> None:
    app[FRONT].catalog.close()
    app[FRONT].close()
    if (spans := app[FRONT].spans) is not None:
        await spans.close()
    if (batches := app[BATCHES]) is not None:
        await batches.close()


@web.middleware
async def _outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        answer = await _answer(request, handler)
    except asyncio.CancelledError:
        note_call(request, LEFT)
        raise
    note_call(request, answer.status)
    expect.close_where_it_waits(request, answer)
    return answer


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    front = request.app[FRONT]
    request[BEGUN] = asyncio.get_running_loop().time()
    try:
        front.hosts.check(request.host)
        _check_framing(request)
        expect.check(request)
        check_encoding(request)
        if (answer := front.cors.preflight(request)) is not None:
            return answer
        if not front.keys.required or request.headers.get("Authorization", "").startswith("Basic "):
            front.cors.check(request)  # credentials that a browser sends by itself do not prove intent
        request[CALLER] = _authenticate(front, request)
        if is_elsewhere(request.method, request.path, request.app[FAR]):
            longest = max(front.settings.offline.batch_bytes + BODIES, front.max_body)
            return await relayed(request, longest)
        with _traced(request):
            return await handler(request)
    except (ApiError, RequestRefused) as raised:
        error = in_words(raised) if isinstance(raised, RequestRefused) else raised
        if error.status in (429, 503) and request.method == "POST":
            caller = request.get(CALLER)
            model = request.get(MODEL, "")
            family = next((info.family for info in front.port.models() if info.id == model), "")
            front.metrics.rejected(model, error.code, (caller.tenant if caller else "") or family)
        request[FAULT] = f"{error.code}: {error.message}"
        return _refused(request, error)
    except web.HTTPException as error:
        use = instead(request.path, {resource.canonical for resource in request.app.router.resources()})
        return _refused(request, from_http(error, request.method, request.path, front.max_body, use))
    except CheckpointError as error:
        return _refused(request, ApiError(500, str(error)))
    except Exception as error:
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            return web.Response(status=LEFT)  # nothing reaches the client
        log.exception("%s %s failed", request.method, request.path, extra=log_names(request))
        return _refused(request, ApiError(500, "internal error; the server's log has the details"))


def _refused(request: web.Request, error: ApiError) -> web.Response:
    """Return an error in the form of the request's API."""
    return error_response(error, error_form(request.path), answer_id(request))


def _check_framing(request: web.Request) -> None:
    """Raise a 400 for lengths that a proxy may read differently; aiohttp's parser has refused most of these."""
    coding = request.headers.get("Transfer-Encoding")
    if coding is None or (coding.strip().lower() == "chunked" and request.version >= HttpVersion11):
        return
    error = bad_request(
        f"Transfer-Encoding: {coding[:100]!r} is not supported; send chunked with HTTP/1.1, or Content-Length"
    )
    error.headers["Connection"] = "close"  # the framing of further bytes is unknown
    raise error


def _traced(request: web.Request) -> contextlib.AbstractContextManager[object]:
    """Return a context in which work belongs to the trace that the request names, as a span of its own."""
    try:
        begun = new_span(parse_traceparent(request.headers.get("traceparent", "")))
    except ValueError:
        return contextlib.nullcontext()  # missing or malformed: W3C says to ignore it
    request[TRACE] = format_traceparent(begun)
    return trace(request[TRACE])


def _authenticate(front: Front, request: web.Request) -> ApiCaller:
    """Return the caller; raise a 401 without a valid key.

    Every path except the health probes needs a key, including unknown paths.
    """
    headers = request.headers
    caller = front.keys.caller(headers.get("Authorization"), headers.get("x-api-key"), own_page=_own_page(request))
    resource = request.match_info.route.resource
    path = resource.canonical if resource is not None else request.path
    if caller is not None:
        if not caller.admin and (path.startswith("/admin") or path in ADMIN):
            where = path if path in ADMIN else "/admin"
            raise ApiError(403, f"this API key may not use {where}; send one that is marked admin", code="permission_denied")
        return caller
    if path in PUBLIC:
        return ApiCaller(admin=False)
    found = "is not valid" if "Authorization" in headers or "x-api-key" in headers else "is missing"
    message = f"the API key {found}; send one in the header Authorization: Bearer KEY"
    if of_anthropic(request.path):
        message += ", or x-api-key: KEY"
    error = ApiError(401, message, code="invalid_api_key")
    if "text/html" in headers.get("Accept", ""):  # a person opens a page: the browser asks for the key
        error.headers = {"WWW-Authenticate": 'Basic realm="Blockwright: any name, the API key as password"'}
    raise error


def _own_page(request: web.Request) -> bool:
    """Return False if a browser was made to ask by a page of another site (all current browsers say so)."""
    return request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

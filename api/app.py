"""The HTTP application: routes, and what all requests pass through (keys, request ids, errors in one shape).

``make_app`` takes the gateway port and nothing of the cluster behind it, so that tests serve from a fake one.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from urllib.parse import quote

from aiohttp import web

from blockwright.actors.config import Settings
from blockwright.actors.gateway.port import GatewayError, GatewayPort
from blockwright.api.auth import Caller, Keys
from blockwright.api.catalog import Catalog
from blockwright.api.cors import Cors
from blockwright.api.door import CHARGE, Door, rate_headers
from blockwright.api.errors import error_response, from_http
from blockwright.api.front import CALL_ID, CALLER, DESK, FRONT, IGNORED, NAME, Front
from blockwright.api.info import REFERENCE
from blockwright.api.metrics import Metrics
from blockwright.api.openapi import document
from blockwright.api.routes import ENDPOINTS, PUBLIC, Handler
from blockwright.api.sse import KEEP_ALIVE_SECONDS
from blockwright.api.starting import Stages
from blockwright.api.version import VERSION
from blockwright.gpu.errors import CheckpointError

log = logging.getLogger(__name__)
MAX_IGNORED_SHOWN = 20
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def make_app(
    port: GatewayPort,
    settings: Settings,
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    stages: Stages | None = None,
) -> web.Application:
    """``keep_alive``: seconds of silence in a stream before a comment; ``stages``: of the start-up."""
    front = Front(
        port=port,
        settings=settings,
        catalog=Catalog(port),
        keys=Keys(settings.api_keys, settings.admin_keys),
        metrics=Metrics(),
        keep_alive=keep_alive,
        max_body=settings.max_body,
        door=Door(port, settings.tenant_models),
        cors=Cors(settings.cors_origins),
        stages=stages or Stages(),
    )
    app = web.Application(middlewares=[_outermost], client_max_size=settings.max_body)
    app[FRONT] = front
    app[DESK] = []
    app.on_response_prepare.append(_headers)
    app.on_cleanup.append(_close)
    app[REFERENCE] = json.dumps(document(ENDPOINTS, VERSION)).encode()
    app.add_routes([web.route(one.method, one.path, one.handler) for one in ENDPOINTS if one.method != "GET"])
    app.add_routes([web.get(one.path, one.handler) for one in ENDPOINTS if one.method == "GET"])
    return app


async def _close(app: web.Application) -> None:
    app[FRONT].catalog.close()


@web.middleware
async def _outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
    front = request.app[FRONT]
    try:
        if (answer := front.cors.preflight(request)) is not None:
            return answer
        request[CALLER] = _authenticate(front, request)
        return await handler(request)
    except GatewayError as error:
        return error_response(error)
    except web.HTTPException as error:
        return error_response(from_http(error, request.method, request.path, front.max_body))
    except CheckpointError as error:
        return error_response(GatewayError(500, str(error)))
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return error_response(GatewayError(500, "internal error; the server's log has the details"))


def _authenticate(front: Front, request: web.Request) -> Caller:
    """A 401 without a valid key, for every path but the health probes (unknown paths included)."""
    caller = front.keys.caller(request.headers.get("Authorization"), own_page=_own_page(request))
    resource = request.match_info.route.resource
    path = resource.canonical if resource is not None else request.path
    if caller is not None:
        if not caller.admin and path.startswith("/admin"):
            raise GatewayError(
                403, "this API key may not use /admin; send one that is marked admin", code="permission_denied"
            )
        return caller
    if path in PUBLIC:
        return Caller(admin=False)
    found = "is not valid" if "Authorization" in request.headers else "is missing"
    error = GatewayError(
        401, f"the API key {found}; send one in the header Authorization: Bearer KEY", code="invalid_api_key"
    )
    if "text/html" in request.headers.get("Accept", ""):  # a person who opens a page: the browser asks for the key
        error.headers = {"WWW-Authenticate": 'Basic realm="Blockwright: any name, the API key as password"'}
    raise error


def _own_page(request: web.Request) -> bool:
    """Not a browser that another site's page makes ask (all that browsers of today send says so)."""
    return request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")


async def _headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams included: the request's id, and the unknown fields that were ignored."""
    given = request.headers.get("x-request-id") or request.get(NAME, "")
    response.headers["x-request-id"] = given if _REQUEST_ID.fullmatch(given) else _own_id(request)
    charge = request.get(CHARGE)
    if charge is not None:
        response.headers.update(rate_headers(charge.verdict))
    request.app[FRONT].cors.mark(request, response.headers)
    ignored = request.get(IGNORED)
    if ignored:
        names = [quote(name[:64], safe="", errors="replace") for name in ignored[:MAX_IGNORED_SHOWN]]
        response.headers["x-ignored-fields"] = ", ".join(names)


def _own_id(request: web.Request) -> str:
    """The id under which ``/v1/requests`` knows it, where it got that far."""
    id = request.get(CALL_ID)
    return id or f"req-{secrets.token_hex(12)}"

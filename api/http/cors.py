"""CORS: which web pages may ask from a browser. Off unless origins are set; a preflight needs no key, as browsers send none.

Never a reason to trust anybody: the answer to a page that is not listed merely lacks the headers that let it be read. Where
no key is needed that is too late for what changes or costs something (cross-site request forgery): there it is refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from ..errors import ApiError

METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
EXPOSED = (
    "x-request-id, x-correlation-id, x-session-affinity, traceparent, x-ignored-fields, "
    "openai-processing-ms, x-queue-ms, x-cached-tokens, retry-after, retry-after-ms, "
    "x-should-retry, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-tokens"
)
KEPT_SECONDS = 600  # how long a browser may remember a preflight


class Cors:
    """``origins``: with commas between, or ``*``."""

    def __init__(self, origins: str) -> None:
        self._origins = frozenset(o.strip().rstrip("/") for o in origins.split(",") if o.strip())

    def _allowed(self, request: web.Request) -> str:
        """The origin to name in an answer; empty for a page that may not ask."""
        origin = request.headers.get("Origin", "")
        if not origin or not self._origins:
            return ""
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else ""

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser's question, or None where this is none, or from a page that is not listed."""
        wanted = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or wanted is None or not self._allowed(request):
            return None
        headers = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Max-Age": str(KEPT_SECONDS),
        }
        return web.Response(status=204, headers=headers)

    def check(self, request: web.Request) -> None:
        """Raises a 403 for a page of another site that is not listed, unless it only reads. For requests that need no key,
        or whose key a browser remembers (Basic).

        Programs send neither header. What a browser calls same-origin is, also behind a proxy that changes the host.
        """
        origin, site = request.headers.get("Origin", ""), request.headers.get("Sec-Fetch-Site", "")
        if request.method in ("GET", "HEAD", "OPTIONS") or self._allowed(request) or site in ("same-origin", "none"):
            return
        if (origin and not _same(origin, request.host)) or (site and not origin):
            raise ApiError(
                403,
                f"web pages of {origin[:200] or 'another site'} may not send requests to this server without a key; list "
                "their origin (--set cors_origins=...), or set api_keys and send one as Bearer",
                code="permission_denied",
            )

    def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """On every answer."""
        headers = response.headers
        if self._origins and "*" not in self._origins:
            headers.add("Vary", "Origin")  # also for pages that are not listed: a cache must not give them another's answer
        origin = self._allowed(request)
        if not origin:
            return
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = EXPOSED


def _same(origin: str, host: str) -> bool:
    """``Origin`` names the host that is asked."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False

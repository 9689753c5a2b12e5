"""CORS: the web pages that may send requests from a browser. Off unless origins are configured.

A preflight needs no key, since browsers send none. CORS never grants trust: an answer to a page that is not listed merely
lacks the headers that let the page read it. Without keys that is too late for requests that change or cost something
(cross-site request forgery), so those are refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from ..errors import ApiError

METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
EXPOSED = (
    "x-request-id, request-id, x-correlation-id, x-session-affinity, traceparent, x-ignored-fields, "
    "openai-processing-ms, x-queue-ms, x-cached-tokens, x-tier, x-variant, retry-after, retry-after-ms, "
    "x-should-retry, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-tokens"
)
KEPT_SECONDS = 600  # seconds for which a browser may cache a preflight


class Cors:
    """The allowed origins. ``origins``: comma-separated, or ``*``."""

    def __init__(self, origins: str) -> None:
        self._origins = frozenset(o.strip().rstrip("/") for o in origins.split(",") if o.strip())

    def _allowed(self, request: web.Request) -> str:
        """Return the origin to name in an answer, or an empty text for a page that is not allowed."""
        origin = request.headers.get("Origin", "")
        if not origin or not self._origins:
            return ""
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else ""

    def preflight(self, request: web.Request) -> web.Response | None:
        """Return the answer to a preflight, or None if the request is not one or its page is not listed."""
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
        """Raise a 403 for a page of another site that is not listed, unless the request only reads.

        Called for requests that need no key, or whose key a browser remembers (Basic). Programs other than browsers send
        neither header. A request that the browser calls same-origin passes, also behind a proxy that changes the host.
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
        """Add the CORS headers to an answer."""
        headers = response.headers
        if self._origins and "*" not in self._origins:
            # also for unlisted pages: a cache must not give them an answer meant for another page
            headers.add("Vary", "Origin")
        origin = self._allowed(request)
        if not origin:
            return
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = EXPOSED


def _same(origin: str, host: str) -> bool:
    """Return True if an ``Origin`` header names the requested host."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False

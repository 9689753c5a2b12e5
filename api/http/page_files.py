"""The page at ``/``: static files of the package. The page gets all its data from the API.

With keys configured the browser asks its user for one (as the password; any name) and sends it with every request of the
page.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
# Nothing is loaded from elsewhere, and no other page may frame this one.
_POLICY = "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"


async def index(request: web.Request) -> web.Response:
    return _file("index.html")


async def asset(request: web.Request) -> web.Response:
    """Return a file of the page, or a 404."""
    name = request.match_info["name"]
    if name not in {path.name for path in FOLDER.iterdir()}:
        raise web.HTTPNotFound
    return _file(name)


def _file(name: str) -> web.Response:
    path = FOLDER / name
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return web.Response(body=path.read_bytes(), content_type=_KINDS[path.suffix], charset="utf-8", headers=headers)

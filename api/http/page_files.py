"""The page at ``/``: files of the package, served as they are. Everything it shows it asks the API for.

With keys a browser is asked for one (as the password; any name) and sends it with every question of the page.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
# Nothing from elsewhere is loaded or asked, and no other page may frame this one.
_POLICY = "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"


async def index(request: web.Request) -> web.Response:
    return _file("index.html")


async def asset(request: web.Request) -> web.Response:
    """A file of the page; a 404 for anything else."""
    name = request.match_info["name"]
    if name not in {path.name for path in FOLDER.iterdir()}:
        raise web.HTTPNotFound
    return _file(name)


def _file(name: str) -> web.Response:
    path = FOLDER / name
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return web.Response(body=path.read_bytes(), content_type=_KINDS[path.suffix], charset="utf-8", headers=headers)

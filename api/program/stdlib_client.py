"""A blocking client for commands that send a server a few requests; standard library only, so that it imports fast.

It owns the exchange, with one connection each. The errors are the same as in ``client.py``. A connection attempt has a time
limit; an answer has none.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from .exchange_errors import DONE, broke, failed, insecure, parsed, refusal, stranger, system_reason, unreachable, unreadable

CONNECT_SECONDS = 10.0
MOST_REDIRECTS = 5  # most redirects of a GET
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}


class StdlibSession:
    """Requests to the server at ``url``, which may have a path, ``/v1`` or a user with a password. Use as ``with``."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url, self._key = url.rstrip("/").removesuffix("/v1"), key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get(self, path: str, holds: str = "") -> Any:
        """Return the JSON of a GET. ``holds``: a field that every server of ours sends. Raise RequestError."""
        return self._json("GET", path, None, holds)

    def post(self, path: str, body: Mapping[str, Any], holds: str = "") -> Any:
        """Return the JSON of a POST; ``holds`` as for ``get``. Raise RequestError."""
        return self._json("POST", path, body, holds)

    def delete(self, path: str, holds: str = "") -> Any:
        """Return the JSON of a DELETE; ``holds`` as for ``get``. Raise RequestError."""
        return self._json("DELETE", path, None, holds)

    def get_text(self, path: str) -> str:
        """Return the text of a GET; raise RequestError."""
        return self._exchange("GET", path)[1]

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None, holds: str = "") -> Any:
        answer, text = self._exchange(method, path, body)
        origin = path, _where(urlsplit(self.url)), answer.status, answer.headers.get_content_type()
        if origin[-1] != "application/json":
            raise stranger(*origin)
        return parsed(text, holds, *origin)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[http.client.HTTPResponse, str]:
        """Return an answer with a status in ``DONE``, and its text."""
        first = urlsplit(self.url)
        headers, url = self._headers(first), f"{self.url}{path}"
        for _ in range(MOST_REDIRECTS + 1):
            parts = urlsplit(url)
            answer, text = _asked(parts, method, headers, body)
            location = answer.headers.get("Location")
            if method != "GET" or answer.status not in _REDIRECTS or not location:
                break
            url = urljoin(url, location)
            if (parts.scheme, parts.netloc) != urlsplit(url)[:2]:
                headers.pop("Authorization", None)  # the key is only for the named server
        if answer.status not in DONE:
            raise refusal(path, _where(parts), answer.status, answer.headers.get_content_type(), text)
        return answer, text

    def _headers(self, parts: SplitResult) -> dict[str, str]:
        if self._key:
            return {"Authorization": f"Bearer {self._key}"}
        if parts.username is None:
            return {}
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def _asked(
    parts: SplitResult, method: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
) -> tuple[http.client.HTTPResponse, str]:
    """Make one exchange; raise RequestError."""
    sent = None if body is None else json.dumps(body).encode()
    kind = {} if sent is None else {"Content-Type": "application/json"}
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection = _connected(parts)
    try:
        try:
            connection.request(method, target, sent, {**headers, **kind, "Connection": "close"})
            answer = connection.getresponse()
        except (OSError, ValueError) as error:  # also RemoteDisconnected, which is both
            raise failed(_where(parts), error) from None
        except http.client.BadStatusLine as error:
            raise unreadable(_where(parts), str(error.args[0])) from None
        except http.client.HTTPException:  # a header that is too long, or too many of them
            raise unreadable(_where(parts), "") from None
        try:
            return answer, answer.read().decode("utf-8", "replace")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise broke(_where(parts), error) from None
    finally:
        connection.close()


def _connected(parts: SplitResult) -> http.client.HTTPConnection:
    """Return an open connection; raise RequestError."""
    host, port = parts.hostname or "", _port(parts)
    secure = parts.scheme == "https"
    made = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(host, port, timeout=CONNECT_SECONDS)
    try:
        made.connect()
    except OSError as error:
        if secure and _is_of_tls(error):
            raise insecure(_where(parts), error) from None
        if isinstance(error, ConnectionResetError):
            raise failed(_where(parts), error) from None
        why = f"no connection within {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else ""
        raise unreachable(_where(parts), why or system_reason(error.errno or 0, error.strerror or error)) from None
    except UnicodeError as error:  # a malformed host name
        raise unreachable(_where(parts), str(error)) from None
    made.sock.settimeout(None)
    return made


def _is_of_tls(error: OSError) -> bool:
    import ssl

    return isinstance(error, ssl.SSLError)


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 80)


def _where(parts: SplitResult) -> str:
    return f"{parts.hostname}:{_port(parts)}"

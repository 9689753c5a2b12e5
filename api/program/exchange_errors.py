"""The error messages of failed HTTP exchanges, shared by both clients. Imports nothing heavy."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from .results import RequestError

PROXY = (502, 503, 504)  # statuses of a proxy in front of a server of ours
DONE = (200, 202)
_SHOWN = 80  # most characters of what a stranger or a proxy says
_TLS_ALERT = "\x15\x03"  # first bytes that a TLS server answers plain HTTP with
_QUOTED = re.compile(r"""b?(?P<sign>['"]).*(?P=sign)""")


def unreachable(where: str, why: str) -> RequestError:
    """Return the error for an address at which nothing listens."""
    hint = "start a server with 'blockwright serve MODEL', or give the address of another one"
    return RequestError(0, f"nothing answers at {where} ({why}); {hint}")


def insecure(where: str, error: BaseException) -> RequestError:
    """Return the error for a TLS connection that was not made."""
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    cause = str(getattr(found, "verify_message", "") or getattr(found, "reason", "") or found)
    if not hasattr(found, "verify_message"):  # no certificate was in question
        remedy = f"if it is a Blockwright server, its address is http://{where}"
        return RequestError(0, f"what answers at {where} does not speak https ({cause}); {remedy}")
    remedy = "name its certificate in SSL_CERT_FILE if that is its own"
    return RequestError(0, f"no secure connection to {where} ({cause}); {remedy}")


def failed(where: str, error: BaseException) -> RequestError:
    """Return the error for a connection that ended before an answer began."""
    why, hint = _cause(error, "it was closed"), "is the server still there, and is its address http or https?"
    return RequestError(0, f"the connection to {where} ended before an answer ({why}); {hint}")


def broke(where: str, error: BaseException) -> RequestError:
    """Return the error for a connection that ended within an answer."""
    why = _cause(error, "it is not complete")
    return RequestError(0, f"the connection to {where} broke within an answer ({why}); is the server still there?")


def unreadable(where: str, line: str) -> RequestError:
    """Return the error for an answer that is not HTTP. ``line``: its first line, one character for each byte."""
    if line.startswith(_TLS_ALERT):
        return RequestError(0, f"what answers at {where} speaks https; write https://{where}")
    text = line.strip()
    what = f"it says {text[:_SHOWN]!r}" if text and text.isprintable() and text.isascii() else "it sends no text of HTTP"
    return RequestError(0, f"what answers at {where} is not a Blockwright server ({what}); give the address of one")


def quoted(message: str) -> str:
    """Return the first line of an answer that a parser's message quotes, or an empty text."""
    found = _QUOTED.search(message)
    try:
        value = ast.literal_eval(found[0]) if found else ""
    except (ValueError, SyntaxError):
        return ""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _cause(error: BaseException, otherwise: str) -> str:
    """Return the operating system's reason if it is one; a parser's message may have several lines."""
    return system_reason(error.errno, error) if isinstance(error, OSError) and error.errno else otherwise


def system_reason(number: int, text: object) -> str:
    """Return the operating system's reason, or ``text`` if the number is not the system's (a name was not found)."""
    return os.strerror(number) if number > 0 else str(text)


def refusal(path: str, where: str, status: int, kind: str, text: str) -> RequestError:
    """Return the error of an answer with another status than ``DONE``. ``kind``: its media type."""
    try:
        return error_of(status, json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError):
        if status not in PROXY:
            return stranger(path, where, status, kind)
        why = "" if kind == "text/html" else " ".join(text.split())[:_SHOWN]
        said = f"{where} answered {path} with {status}" + (f" ({why})" if why else "")
        return RequestError(status, f"{said}, like a proxy whose server is away; is the server still there?")


def stranger(path: str, where: str, status: int, kind: str, lacks: str = "") -> RequestError:
    """Return the error for an answer of a server that is not ours. ``lacks``: a field that is not in its JSON."""
    what = f"{path} gave {status} and {kind}" + (f" without {lacks!r}" if lacks else "")
    return RequestError(status, f"what answers at {where} is not a Blockwright server ({what}); give the address of one")


def parsed(text: str | bytes, holds: str, path: str, where: str, status: int, kind: str) -> Any:
    """Return the value of a JSON text, which has the field ``holds`` if one is named; raise the error of a stranger."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise stranger(path, where, status, kind) from None
    if holds and not (isinstance(found, dict) and holds in found):
        raise stranger(path, where, status, kind, holds)
    return found


def error_of(status: int, body: Mapping[str, Any]) -> RequestError:
    """Return the error in the body of a refusal."""
    error = body["error"]
    return RequestError(status, str(error["message"]), code=str(error.get("code") or ""), param=error.get("param"))


def warn_ignored(names: str) -> None:
    """Warn that fields have no effect."""
    warnings.warn(f"the server ignores: {names}", stacklevel=3)

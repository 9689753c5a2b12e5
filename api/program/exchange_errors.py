"""The error messages of failed HTTP exchanges, shared by both clients. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from .results import RequestError

PROXY = (502, 503, 504)  # statuses of a proxy in front of a server of ours
DONE = (200, 202)


def unreachable(where: str, why: str) -> RequestError:
    """Return the error for an address at which nothing listens."""
    hint = "start a server with 'blockwright serve MODEL', or give the address of another one"
    return RequestError(0, f"nothing answers at {where} ({why}); {hint}")


def insecure(where: str, error: BaseException) -> RequestError:
    """Return the error for a TLS connection that was not made."""
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    cause = str(getattr(found, "verify_message", "") or getattr(found, "reason", "") or found)
    remedy = "check that it speaks https, and name its certificate in SSL_CERT_FILE if that is its own"
    return RequestError(0, f"no secure connection to {where} ({cause}); {remedy}")


def failed(error: BaseException) -> RequestError:
    """Return the error for a connection that ended before an answer began."""
    return RequestError(0, f"the connection failed ({error}); is the server still there?")


def broke(error: BaseException) -> RequestError:
    """Return the error for a connection that ended within an answer."""
    return RequestError(0, f"the connection broke ({error}); is the server still there?")


def system_reason(number: int, told: object) -> str:
    """Return the operating system's reason, or ``told`` if the number is not the system's (a name was not found)."""
    return os.strerror(number) if number > 0 else str(told)


def refusal(path: str, where: str, status: int, kind: str, text: str) -> RequestError:
    """Return the error of an answer with another status than ``DONE``. ``kind``: its media type."""
    try:
        return error_of(status, json.loads(text))
    except (ValueError, KeyError, TypeError):
        if status in PROXY:
            return RequestError(status, f"{path} answered {status}: {text[:200]}")
        return stranger(path, where, status, kind)


def stranger(path: str, where: str, status: int, kind: str) -> RequestError:
    """Return the error for an answer that does not come from a server of ours."""
    said = f"what answers at {where} is not a Blockwright server ({path} gave {status} and {kind})"
    return RequestError(status, f"{said}; give the address of one")


def error_of(status: int, body: Mapping[str, Any]) -> RequestError:
    """Return the error in the body of a refusal."""
    error = body["error"]
    return RequestError(status, str(error["message"]), code=str(error.get("code") or ""), param=error.get("param"))


def warn_ignored(names: str) -> None:
    """Warn that fields have no effect."""
    warnings.warn(f"the server ignores: {names}", stacklevel=3)

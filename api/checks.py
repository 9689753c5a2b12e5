"""Helpers for every check of a JSON body: showing a value in a refusal, and refusing invalid Unicode."""

from __future__ import annotations

import json
from typing import Any

from .errors import bad_request

Body = dict[str, Any]


def shown(value: Any) -> str:
    """Return a value for a message: short, and in JSON's form except for a text, which has single quotes."""
    text = _json(value) if value is None or isinstance(value, bool | list | dict) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _json(value: Any) -> str:
    """Return JSON, with unescaped letters if the text is valid Unicode, or Python's form for other values."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return text


def unicode_text(value: str, name: str) -> str:
    """Return the text; refuse lone surrogates, which JSON can spell and no tokenizer accepts."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{name} has a lone surrogate at character {error.start}; send valid Unicode", name) from None
    return value

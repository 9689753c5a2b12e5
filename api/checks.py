"""What every check of a JSON body needs: how a value is shown in a refusal, and which text is text."""

from __future__ import annotations

import json
from typing import Any

from .errors import bad_request

Body = dict[str, Any]


def shown(value: Any) -> str:
    """Return a value as it may stand in a message: short, and as JSON has it, but for a text, which has single quotes."""
    text = _json(value) if value is None or isinstance(value, bool | list | dict) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _json(value: Any) -> str:
    """Return JSON, with letters as they are where that is Unicode; what is no JSON as Python has it."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return text


def unicode_text(value: str, name: str) -> str:
    """Refuses lone surrogates, which JSON can spell and no tokenizer accepts."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{name} has a lone surrogate at character {error.start}; send valid Unicode", name) from None
    return value

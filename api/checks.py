"""What every check of a JSON body needs: how a value is shown in a refusal, and which text is text."""

from __future__ import annotations

from typing import Any

from blockwright.api.errors import bad_request

Body = dict[str, Any]

_JSON = {"None": "null", "True": "true", "False": "false"}


def shown(value: Any) -> str:
    """A value as it may stand in a message: short, and as JSON has it where it is null, true or false."""
    text = _JSON.get(repr(value), repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def unicode_text(value: str, name: str) -> str:
    """Refuses lone surrogates, which JSON can spell and no tokenizer accepts."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{name} has a lone surrogate at character {error.start}; send valid Unicode", name) from None
    return value

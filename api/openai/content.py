"""Content in a body: one text, or a list of text parts, as messages and predictions have it."""

from __future__ import annotations

from typing import Any

from ..checks import shown, unicode_text
from ..errors import bad_request

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
CONTENT: tuple[dict[str, Any], ...] = ({"type": "string"}, {"type": "array", "minItems": 1, "items": _PART})  # JSON Schema


def read_content(content: Any, at: str) -> str | list[dict[str, str]]:
    """Return a content, checked. ``at``: its place in the body, for the refusal."""
    if isinstance(content, str):
        return unicode_text(content, at)
    if not isinstance(content, list) or not content:
        found = "null or missing" if content is None else shown(content)
        raise bad_request(f"{at} is {found}; give a string or a list of text parts", at, "invalid_type")
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            found = shown(part if kind is None else kind)
            raise bad_request(
                f"{at}[{i}] is {found}; this server takes text parts only", f"{at}[{i}]", "unsupported_parameter"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise bad_request(f"{at}[{i}].text is {shown(text)}; give a string", f"{at}[{i}].text", "invalid_type")
        parts.append({"type": "text", "text": unicode_text(text, f"{at}[{i}].text")})
    return parts

"""The fields of a body about drafts: their types, and the drafts that they make for a request.

Drafts are guesses of the next tokens, which the model verifies; they change no token (``policies/drafts``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...policies.drafts.choice import FORM, MODES, TIER, mode_fault
from ..checks import shown
from ..errors import bad_request
from .content import CONTENT, read_content
from .field_types import Mapping, OneOf, Schema


@dataclass(frozen=True, slots=True)
class DraftMode:
    """The source of a request's drafts."""

    def read(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise bad_request(f"{name} is {shown(value)}; {FORM}", name, "invalid_type")
        if fault := mode_fault(value):
            raise bad_request(f"{name} is {shown(value)}, {fault}", name)
        return value

    def schema(self) -> Schema:
        return {"anyOf": [OneOf(MODES).schema(), {"type": "string", "pattern": f"^{TIER}$"}]}


@dataclass(frozen=True, slots=True)
class Prediction:
    """OpenAI's predicted output, read as its text."""

    def read(self, value: Any, name: str) -> str:
        given = Mapping().read(value, name)
        if (kind := given.get("type")) != "content":
            raise bad_request(f"{name}.type is {shown(kind)}; give content", f"{name}.type")
        if unknown := sorted(given.keys() - {"type", "content"}):
            raise bad_request(
                f"{name} has no field {shown(unknown[0])}; its fields are type and content", f"{name}.{unknown[0]}"
            )
        content = read_content(given.get("content"), f"{name}.content")
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    def schema(self) -> Schema:
        properties = {"type": {"const": "content"}, "content": {"anyOf": list(CONTENT)}}
        return {"type": "object", "properties": properties, "required": ["type", "content"]}

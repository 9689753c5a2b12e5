"""The chat template that comes with a checkpoint: where it stands in the folder, and its faults as a 400."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockwright.api.errors import bad_request
from blockwright.api.template_engine import Engine, Rendering, TemplateFault
from blockwright.api.tokenizer import read_json


class ChatTemplate:
    """Trusted: it runs where it is called."""

    def __init__(self, source: str, named: dict[str, str]) -> None:
        self._engine = Engine(source, named)

    @classmethod
    def load(cls, folder: Path, named: dict[str, str]) -> ChatTemplate | None:
        """None where the checkpoint has no template."""
        file = folder / "chat_template.jinja"
        if file.is_file():
            return cls(file.read_text(encoding="utf-8"), named)
        source = read_json(folder, "tokenizer_config.json").get("chat_template")
        if isinstance(source, list):
            source = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}.get("default")
        return cls(source, named) if isinstance(source, str) else None

    def render(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> str:
        """See ``Engine``. Raises a 400 with the template's own words."""
        with refusals():
            return self._engine.render(messages, how)


@contextmanager
def refusals() -> Iterator[None]:
    """A template's fault is the request's."""
    try:
        yield
    except TemplateFault as fault:
        raise bad_request(fault.message, fault.param, "template_error") from None

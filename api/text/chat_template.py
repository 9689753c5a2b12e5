"""The chat template of a checkpoint: where it stands in the folder, and what it makes of a conversation.

As transformers' ``apply_chat_template``. A template that does too much (``template_engine.py``) with a plain conversation is
refused when it is loaded; other faults of templates are a request's 400. Never tokenizes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockwright.api.errors import ApiError, bad_request
from blockwright.api.text.template_engine import Environment, TooMuch
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles

log = logging.getLogger(__name__)
LONGEST = 1 << 20  # characters of a template
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where the last message ends, as transformers does it
_PLAIN = ({"role": "user", "content": "hello"},)


@dataclass(frozen=True, slots=True)
class Rendering:
    """How messages become a prompt: up to where the assistant speaks (``begin``), or to the end of the last message's text
    (``proceed``). ``variables``: further names for the template; ``longest``: characters of the prompt."""

    begin: bool
    proceed: bool
    variables: Mapping[str, Any]
    longest: int


class ChatTemplate:
    """A compiled template; ``named`` are the checkpoint's special tokens, which templates refer to by role."""

    def __init__(self, source: str, named: Mapping[str, str]) -> None:
        self._environment, self._named = Environment(), named
        self._broken = ""
        try:
            with self._environment.budget(0):
                self._template = self._environment.from_string(source)
        except Exception as error:  # Python's compiler has limits of its own
            self._broken = f"{type(error).__name__}: {error}"  # completions work without; chat says why it does not

    @classmethod
    def load(cls, files: CheckpointFiles, named: dict[str, str]) -> ChatTemplate | None:
        """None where the checkpoint has no template. Raises CheckpointError."""
        file, source = files.chat_template()
        if isinstance(source, list):
            source = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}.get("default")
        if not isinstance(source, str):
            return None
        if len(source) > LONGEST:
            size = f"{len(source)} characters, more than {LONGEST}"
            raise CheckpointError(f"{file}: the chat template has {size}; give the checkpoint a shorter one")
        made = cls(source, named)
        try:
            made._text(_PLAIN, begin=True, variables={})
        except TooMuch as error:
            raise CheckpointError(f"{file}: the chat template {error}; give the checkpoint another one") from None
        except Exception as error:  # many refuse some conversations
            log.debug("%s refuses a plain conversation: %s", file, error)
        return made

    def render(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> str:
        """The prompt. Raises a 400 with the template's own words."""
        if self._broken:
            raise _fault(f"the chat template does not compile ({self._broken}); use /v1/completions")
        given = list(messages)
        if how.proceed:
            given[-1] = {**given[-1], "content": given[-1]["content"] + _TAG}
        try:
            text = self._text(given, begin=how.begin, variables=how.variables)
        except TooMuch as error:
            raise _fault(f"the chat template {error}; send less") from None
        except Exception as error:  # a template can raise anything when messages are not what it expects
            raise _fault(f"the chat template refuses these messages: {error}; change their roles or order") from None
        text = _cut(text) if how.proceed else text
        if len(text) > how.longest:
            made = f"the chat template makes {len(text)} characters of these messages, more than max_body ({how.longest})"
            raise _fault(f"{made}; send less")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _fault("the chat template prints a lone surrogate; print valid Unicode") from None
        return text

    def _text(self, messages: Sequence[Mapping[str, Any]], *, begin: bool, variables: Mapping[str, Any]) -> str:
        """Raises whatever templates raise, and ValueError for one that does not compile."""
        if self._broken:
            raise ValueError(self._broken)
        names = {**self._named, **variables}
        with self._environment.budget(len(messages)):
            given = list(messages)
            return self._template.render(messages=given, tools=None, documents=None, add_generation_prompt=begin, **names)


def _fault(message: str, param: str = "messages") -> ApiError:
    return bad_request(message, param, "template_error")


def _cut(text: str) -> str:
    """The text before the tag; without the spaces there, if the template has stripped the message."""
    at = text.rfind(_TAG.strip())
    if at < 0:
        message = "the chat template does not print the last message; leave continue_final_message out"
        raise _fault(message, "continue_final_message")
    return text[:at] if text[at : at + len(_TAG)] == _TAG else text[:at].rstrip()

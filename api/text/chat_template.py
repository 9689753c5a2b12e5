"""The chat template of a checkpoint: where to find it, and how to render a conversation with it.

The results equal transformers' ``apply_chat_template``. A template that exceeds its budget (``template_budget.py``) with a
plain conversation is refused when it is loaded. Other faults of templates are a 400 for the request. Nothing is tokenized
here.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from ...gpu.errors import CheckpointError
from ...gpu.weights.checkpoint_files import CheckpointFiles
from ..errors import ApiError, bad_request
from .template_budget import BudgetExceeded
from .template_engine import Environment

log = logging.getLogger(__name__)
LONGEST = 1 << 20  # most characters of a template
_LONGEST_WHY = 1000  # characters of an error of a template
MANY = 1000  # messages; this number takes some milliseconds by itself
SHORT = 4_000  # steps; this number takes some milliseconds, too few to be worth the hand-over to a thread
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks the end of the last message, as in transformers
_FOR_TOOLS = "tool_use"  # the name of the template for requests with tools
_PLAIN = ({"role": "user", "content": "hello"},)
_MARK, _OTHER = "8qxmark5zw", "7kvother3hu"  # texts that occur in no template
_CALL = {"id": "8qxcall5z", "type": "function", "function": {"name": "get", "arguments": {"a": _MARK}}}
_CALLED: tuple[dict[str, Any], ...] = (  # a history with a call
    *_PLAIN,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": _CALL["id"], "content": _OTHER},
)
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
_OFFERED = {"type": "function", "function": {"name": "get", "description": "a", "parameters": _PARAMETERS}}


@dataclass(frozen=True, slots=True)
class Rendering:
    """The options for rendering messages as a prompt.

    ``begin``: end with the beginning of the assistant's message. ``proceed``: end with the text of the last message.
    ``variables``: further names for the template. ``longest``: most characters of the prompt. ``tools``: descriptions of
    functions that may be called.
    """

    begin: bool
    proceed: bool
    variables: Mapping[str, Any]
    longest: int
    tools: Sequence[Mapping[str, Any]] = ()


class ContentForm(Enum):
    """The form of a message's content that a template accepts."""

    TEXT = "text"
    PARTS = "parts"
    BOTH = "both"


class ChatTemplate:
    """A compiled template. ``named``: the checkpoint's special tokens, which templates refer to by role.

    ``for_tools``: the template of requests with tools, if the checkpoint has one of its own for them.
    """

    def __init__(self, source: str, named: Mapping[str, str]) -> None:
        self._environment, self._named = Environment(), named
        self.source = source
        self._broken = ""
        self._takes: dict[str, ContentForm] = {}  # role -> accepted form; without an entry for "user", all roles get texts
        self._developer = "developer" in source
        self.for_tools: ChatTemplate | None = None
        self._unprinted: dict[bool, tuple[str, ...]] = {}
        try:
            with self._environment.budget(0):
                self._template = self._environment.from_string(source)
        except BudgetExceeded:
            raise
        except Exception as error:  # Python's compiler has limits of its own
            self._broken = (
                f"{type(error).__name__}: {_said(error)}"  # completions work without a template; chat reports the error
            )

    @classmethod
    def load(cls, files: CheckpointFiles, named: dict[str, str]) -> ChatTemplate | None:
        """Load the template of a checkpoint; return None if it has none. Raise CheckpointError."""
        file, found = files.chat_template()
        listed = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        texts = {name: one.get("template") for one in listed if isinstance(name := one.get("name"), str)}
        made = cls._loaded(file, texts.get("default") if listed else found, named)
        if made is not None and (source := texts.get(_FOR_TOOLS)) is not None:
            made.for_tools = cls._loaded(file, source, named)
        return made

    @classmethod
    def _loaded(cls, file: Path, source: Any, named: dict[str, str]) -> ChatTemplate | None:
        if not isinstance(source, str):
            return None
        if len(source) > LONGEST:
            size = f"{len(source)} characters, more than {LONGEST}"
            raise CheckpointError(f"{file}: the chat template has {size}; give the checkpoint a shorter one")
        try:
            made = cls(source, named)
            made._text(_PLAIN, begin=True, variables={})
        except BudgetExceeded as error:
            raise CheckpointError(f"{file}: the chat template {error}; give the checkpoint another one") from None
        except Exception as error:  # many templates refuse some conversations
            log.debug("%s refuses a plain conversation: %s", file, _said(error))
        made._find_forms(file)
        return made

    @cached_property
    def takes_pairs(self) -> bool:
        """True if it prints messages of the roles query and document, which it names, as a reranker's does."""
        if not all(re.search(f"""['"]{role}['"]""", self.source) for role in ("query", "document")):
            return False
        pair = [{"role": "query", "content": _MARK}, {"role": "document", "content": _OTHER}]
        for form in (ContentForm.TEXT, ContentForm.PARTS):
            forms = {"query": form, "document": form, "system": self._takes.get("system", form)}
            kept, self._takes = self._takes, {**self._takes, **forms}
            try:
                text = self._text([self._fitting(message) for message in pair], begin=False, variables={})
            except Exception:  # other templates refuse the roles
                text = ""
            if _MARK in text and _OTHER in text:
                return True
            self._takes = kept
        return False

    def unprinted(self, *, tools: bool) -> tuple[str, ...]:
        """Return which of tool_calls and the role tool the template does not print. ``tools``: some are offered."""
        if tools not in self._unprinted:
            texts = []
            for end in ((), _PLAIN):
                history = [self._fitting(message) for message in (*_CALLED, *end)]
                try:
                    texts.append(self._text(history, begin=True, variables={}, tools=[_OFFERED] if tools else []))
                except Exception as error:  # then a request's own history tells
                    log.debug("a chat template refuses a history with a call: %s", _said(error))
            marks = {"tool_calls": _MARK, "the role tool": _OTHER}
            lacking = [name for name, mark in marks.items() if texts and not any(mark in text for text in texts)]
            self._unprinted[tools] = tuple(lacking)
        return self._unprinted[tools]

    def of(self, tools: Sequence[object]) -> ChatTemplate:
        """Return the template of a request with these tools."""
        return self.for_tools if tools and self.for_tools is not None else self

    def render_short(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> str | None:
        """Return the prompt if it renders within some milliseconds, else None. Raises the errors of ``render``."""
        if len(messages) > MANY:
            return None
        try:
            return self._render(messages, how, SHORT)
        except BudgetExceeded:
            return None

    def _find_forms(self, file: Path) -> None:
        """Find the form of content that each role's messages need; warn of a template that prints none."""
        user, renders = self._form([["user!"], ["system", "user!"], ["user", "assistant", "user!"]])
        if user is None:
            if renders and not self.takes_pairs:
                log.warning("%s: the chat template prints no text of a user's message; chats have empty prompts", file)
            return
        before = {"system": [], "developer": [], "assistant": ["user"], "tool": ["user"]}
        forms = {role: self._form([[*first, f"{role}!"], [*first, f"{role}!", "user"]])[0] for role, first in before.items()}
        self._takes = {"user": user, **{role: form or user for role, form in forms.items()}}

    def _form(self, conversations: Sequence[Sequence[str]]) -> tuple[ContentForm | None, bool]:
        """Return the form in which a template prints the marked role's content (None: not at all), and True if it renders.

        The conversations are lists of roles. They are tried in order, since many templates refuse some.
        """
        # shows that a template prints a whole part instead of its text
        part = {"type": "text", "text": _MARK, "other": _OTHER}
        renders = False
        for roles, rest in itertools.product(conversations, ("hello", [{"type": "text", "text": "hello"}])):
            texts = []
            for content in (_MARK, [part]):
                messages = [{"role": r.rstrip("!"), "content": content if r.endswith("!") else rest} for r in roles]
                try:
                    texts.append(self._text(messages, begin=True, variables={}).casefold())
                    renders = True
                except Exception:  # the template refuses such a conversation
                    texts.append("")
            text, parts = _MARK in texts[0], _MARK in texts[1] and _OTHER not in texts[1]
            if text or parts:
                return (ContentForm.BOTH if text else ContentForm.PARTS) if parts else ContentForm.TEXT, renders
        return None, renders

    def _fitting(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message in the form that the template accepts."""
        role, content = message["role"], message["content"]
        if role == "developer" and not self._developer:
            role = "system"  # the older name of the same role
        form = self._takes.get(role, self._takes.get("user", ContentForm.TEXT))
        if form is ContentForm.TEXT and not isinstance(content, str):
            content = "\n".join(part["text"] for part in content)
        elif form is ContentForm.PARTS and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        return {**message, "role": role, "content": content}

    def render(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> str:
        """Return the prompt, which may take seconds; raise a 400 with the template's own words."""
        try:
            return self._render(messages, how, math.inf)
        except BudgetExceeded as error:
            raise _fault(f"the chat template {error}; send less") from None

    def _render(self, messages: Sequence[Mapping[str, Any]], how: Rendering, limit: float) -> str:
        """Return the prompt; raise a 400 with the template's own words, and BudgetExceeded after ``limit`` steps."""
        if self._broken:
            raise _fault(f"the chat template does not compile ({self._broken}); use /v1/completions")
        given = [self._fitting(message) for message in messages]
        if how.proceed:
            given[-1] = {**given[-1], "content": _tagged(given[-1]["content"])}
        try:
            text = self._text(given, begin=how.begin, variables=how.variables, limit=limit, tools=how.tools)
        except BudgetExceeded:
            raise
        except Exception as error:  # a template may raise anything if messages are not as it expects
            raise _fault(f"the chat template refuses these messages: {_said(error)}; change their roles or order") from None
        text = _cut(text) if how.proceed else text
        if len(text) > how.longest:
            made = f"the chat template makes {len(text)} characters of these messages, more than max_body ({how.longest})"
            raise _fault(f"{made}; send less")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _fault("the chat template prints a lone surrogate; print valid Unicode") from None
        return text

    def _text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        begin: bool,
        variables: Mapping[str, Any],
        limit: float = math.inf,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render the template. Raise its exceptions, and ValueError if it does not compile."""
        if self._broken:
            raise ValueError(self._broken)
        names = {**self._named, **variables}
        characters = sum(_length(one.get("content")) for one in messages)
        offered = list(tools) or None
        characters += len(json.dumps(offered)) if offered else 0
        with self._environment.budget(len(messages) + len(tools), characters, limit):
            given = list(messages)
            return self._template.render(messages=given, tools=offered, documents=None, add_generation_prompt=begin, **names)


def _tagged(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return content with the tag after its last text."""
    if isinstance(content, str):
        return content + _TAG
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + _TAG}]


def _length(content: Any) -> int:
    """Return the number of characters of a message's content (a text or parts)."""
    if isinstance(content, list):
        return sum(_length(part.get("text")) for part in content if isinstance(part, dict))
    return len(content) if isinstance(content, str) else 0


def _said(error: Exception) -> str:
    """Return the beginning of an error's text, which may quote a whole template or message."""
    return str(error)[:_LONGEST_WHY]


def _fault(message: str, param: str = "messages") -> ApiError:
    return bad_request(message, param, "template_error")


def _cut(text: str) -> str:
    """Return the text before the tag, right-stripped if the template has stripped the message."""
    at = text.rfind(_TAG.strip())
    if at < 0:
        message = "the chat template does not print the last message; leave continue_final_message out"
        raise _fault(message, "continue_final_message")
    return text[:at] if text[at : at + len(_TAG)] == _TAG else text[:at].rstrip()

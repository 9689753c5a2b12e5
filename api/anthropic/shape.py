"""The form of a message: blocks of content, as events or whole. A whole answer is made of the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from ...policies.requests.urgency import class_of
from ..errors import ApiError, anthropic_form, error_body
from ..http.headers import answer_id
from ..openai.chat import call_id
from ..openai.choice import ChoiceText, TextPiece
from ..openai.generate import AnswerShape, GenerateHandler
from ..text.turn.json_calls import CallPiece
from ..text.turn.reader import TurnDelta
from .answers import MessageEvent, MessageUsage, StopReason
from .bodies import MessageOptions
from .tool_input import ToolInput, completed

THINKING, TEXT = "thinking", "text"
TOOL = "tool_use"
_KEYS = {
    "thinking_delta": "thinking",
    "text_delta": "text",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_TIERS = {"urgent": "priority", "normal": "standard", "batch": "batch"}


class MessageBlocks:
    """The blocks of an answer, of which at most one is open. ``request``: its id. ``shown``: thinking has its text."""

    def __init__(self, request: str, *, shown: bool) -> None:
        self._request = request
        self._shown = shown
        self._kind = ""  # of the open block
        self._index = -1
        self._input = ToolInput()

    def add(self, delta: TurnDelta) -> Iterator[MessageEvent]:
        """Yield the events of an addition to the turn."""
        if delta.call is not None:
            yield from self._add_call(delta.call)
        elif delta.reasoning:
            yield from self._enter(THINKING, {"thinking": "", "signature": ""})
            if self._shown:
                yield self._delta("thinking_delta", delta.reasoning)
        elif delta.content:
            yield from self._enter(TEXT, {"text": ""})
            yield self._delta("text_delta", delta.content)

    def _add_call(self, call: CallPiece) -> Iterator[MessageEvent]:
        if call.name:
            yield from self.close()
            self._input = ToolInput()
            yield self._start(
                TOOL, {"id": f"toolu_{call_id(self._request, 0, self._index + 1)}", "name": call.name, "input": {}}
            )
        if text := self._input.feed(call.arguments):
            yield self._delta("input_json_delta", text)

    def close(self) -> Iterator[MessageEvent]:
        """Yield the events that end the open block, if there is one."""
        if not self._kind:
            return
        if self._kind == THINKING:
            yield self._delta("signature_delta", "")
        self._kind = ""
        yield {"type": "content_block_stop", "index": self._index}

    def _enter(self, kind: str, block: dict[str, Any]) -> Iterator[MessageEvent]:
        if self._kind != kind:
            yield from self.close()
            yield self._start(kind, block)

    def _start(self, kind: str, block: dict[str, Any]) -> MessageEvent:
        self._kind = kind
        self._index += 1
        return cast(
            MessageEvent, {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **block}}
        )

    def _delta(self, kind: str, text: str) -> MessageEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, _KEYS[kind]: text}}


def blocks_of(events: Iterable[MessageEvent]) -> list[dict[str, Any]]:
    """Return the blocks that the events of a stream make, as a client joins them."""
    made: list[dict[str, Any]] = []
    parts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            made.append(dict(event["content_block"]))
            parts = []
        elif event["type"] == "content_block_delta" and event["delta"]["type"] != "signature_delta":
            parts.append(event["delta"][_KEYS[event["delta"]["type"]]])
        elif event["type"] == "content_block_stop":
            kind, text = made[-1]["type"], "".join(parts)
            made[-1] |= {"input": completed(text)} if kind == TOOL else {kind: text}
    return made


class MessageShape(AnswerShape):
    """The form of a message's answer."""

    prefix = "msg"

    def __init__(self, call: GenerateHandler) -> None:
        super().__init__(call)
        options = call.options
        self._blocks = MessageBlocks(call.id, shown=not isinstance(options, MessageOptions) or options.thinking_shown)

    def chunk(self) -> dict[str, Any]:
        """Return the message before its content."""
        return {"id": self._call.id, "type": "message", "role": "assistant", "model": self._top["model"]}

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        made = b""
        if not choice.started:
            choice.started = True
            made = _written({"type": "message_start", "message": self._message([], None, None)}) + _written({"type": "ping"})
        made += b"".join(map(_written, self._made(choice, piece)))
        if piece.finish:
            reason, sequence = self._end(choice, piece)
            end = {"stop_reason": reason, "stop_sequence": sequence}
            made += _written({"type": "message_delta", "delta": end, "usage": self._usage_now()})
        return made

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        (choice,) = self._call.choices
        (piece,) = pieces
        return self._message(blocks_of(self._made(choice, piece)), *self._end(choice, piece))

    def end(self) -> bytes:
        return _written({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error_body(error, anthropic_form, answer_id(self._call.request)) + b"\n\n"

    def _made(self, choice: ChoiceText, piece: TextPiece) -> Iterator[MessageEvent]:
        """Yield the events of the blocks for a piece."""
        if choice.reader is not None:
            for delta in piece.deltas:
                yield from self._blocks.add(delta)
        elif piece.text:
            yield from self._blocks.add(TurnDelta(content=piece.text))
        if piece.finish:
            yield from self._blocks.close()

    def _message(self, content: list[dict[str, Any]], reason: StopReason | None, sequence: str | None) -> dict[str, Any]:
        usage: dict[str, Any] = {
            **self._usage_now(),
            "service_tier": _TIERS[class_of(self._call.options.service_tier or "default")],
        }
        return {**self.chunk(), "content": content, "stop_reason": reason, "stop_sequence": sequence, "usage": usage}

    def _end(self, choice: ChoiceText, piece: TextPiece) -> tuple[StopReason, str | None]:
        """Return why the answer ended, and the stop sequence if the request's own ended it."""
        if piece.finish == "length":
            return "max_tokens", None
        if isinstance(piece.stop_reason, str) and piece.stop_reason in self._call.options.stop:
            return "stop_sequence", piece.stop_reason
        called = choice.reader is not None and choice.reader.called and not choice.reader.cut_call
        return ("tool_use" if called else "end_turn"), None

    def _usage_now(self) -> MessageUsage:
        usage = self._call.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        made: MessageUsage = {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
        if (thought := usage["completion_tokens_details"].get("reasoning_tokens")) is not None:
            made["output_tokens_details"] = {"thinking_tokens": thought}
        return made


def _written(event: Any) -> bytes:
    """Return an event as it is sent."""
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()

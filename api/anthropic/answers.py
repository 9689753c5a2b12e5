"""The forms of answers and events of Anthropic's API, as types (see ``..answers``)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageErrorDetail(TypedDict):
    type: str
    message: str


class MessageErrorAnswer(TypedDict):
    """An error. ``message``: one sentence that names field, value and remedy."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None


class ThinkingDetails(TypedDict):
    """``thinking_tokens``: tokens of the thinking, with its marks."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """The usage. The prompt has the sum of the three numbers of input tokens.

    ``cache_read_input_tokens``: found in the prefix cache.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[ThinkingDetails]
    service_tier: NotRequired[Literal["standard", "priority", "batch"]]


class ThinkingBlock(TypedDict):
    """``signature`` is empty: thinking is not signed here."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageAnswer(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    input_tokens: int


class MessageStart(TypedDict):
    """The first event: the message without content."""

    type: Literal["message_start"]
    message: MessageAnswer


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ThinkingBlock | TextBlock | ToolUseBlock


class BlockDelta(TypedDict):
    """An addition to a block: text_delta, thinking_delta, signature_delta or input_json_delta."""

    type: Literal["content_block_delta"]
    index: int
    delta: dict[str, str]


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """The end of the message: its reason, and the whole usage."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class BareEvent(TypedDict):
    type: Literal["ping", "message_stop"]


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | BareEvent

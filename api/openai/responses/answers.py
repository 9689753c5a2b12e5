"""The forms of responses and of their events, as types for the reference (``/openapi.json``)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from ...answers import TokenLogprobAnswer

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputTextPart(TypedDict):
    """A text. ``logprobs``: of its tokens, if they were asked for."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobAnswer]


class ReasoningPart(TypedDict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class MessageItem(TypedDict):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextPart]


class ReasoningItem(TypedDict):
    """The thinking before an answer: its text is ``content``, or ``summary`` if a summary was asked for.

    ``encrypted_content``: the text again, to be given back; only if asked for.
    """

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[ReasoningPart]
    content: list[ReasoningPart]
    encrypted_content: NotRequired[str]


class FunctionCallItem(TypedDict):
    """A call of a function. ``arguments``: JSON in a text."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CustomCallItem(TypedDict):
    type: Literal["custom_tool_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class ResponseFault(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(TypedDict):
    """``cached_tokens``: found in the prefix cache. ``cache_write_tokens``: the others, which were computed."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsageAnswer(TypedDict):
    """``tier``: model id of the tier that answered, only for models of a family."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    tier: NotRequired[str]


class ResponseAnswer(TypedDict):
    """A response. Members after ``output`` repeat the request, with the values that hold."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsageAnswer | None
    output: list[OutputItem]
    service_tier: str | None
    temperature: float
    top_p: float
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    store: Literal[False]
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponseEvent(TypedDict):
    """An event of a stream, whose name is its ``type``; they are numbered from 0.

    ``response``: of created, in_progress, completed, incomplete and failed. ``item``: of output_item. ``part``: of
    content_part and reasoning_summary_part. ``delta`` and the members behind it: of a text, arguments or an input.
    """

    type: str
    sequence_number: int
    response: NotRequired[ResponseAnswer]
    output_index: NotRequired[int]
    item: NotRequired[OutputItem]
    item_id: NotRequired[str]
    content_index: NotRequired[int]
    summary_index: NotRequired[int]
    part: NotRequired[OutputTextPart | ReasoningPart]
    delta: NotRequired[str]
    text: NotRequired[str]
    logprobs: NotRequired[list[TokenLogprobAnswer]]
    name: NotRequired[str]
    arguments: NotRequired[str]
    input: NotRequired[str]
    code: NotRequired[str]
    message: NotRequired[str]
    param: NotRequired[str | None]

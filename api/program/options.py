"""The options of ``generate`` and ``chat`` in a program: the API's fields by name, with their types.

A test compares them with the fields that the server parses. Requests are not made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, get_type_hints

from ...policies.nearest import suggestion


class CommonOptions(TypedDict, total=False):
    """Options shared by completions and chat. None means unset."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    min_tokens: int | None
    max_completion_tokens: int | None
    max_tokens: int | None
    n: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    add_special_tokens: bool | None
    cache_salt: str | None
    quality: Literal["low", "high", "auto"] | None
    adaptive: bool | None
    draft: str | None
    draft_tokens: int | None
    prediction: Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    structured_outputs: Mapping[str, Any] | None
    guided_json: Mapping[str, Any] | str | bool | None
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    guided_grammar: str | None
    priority: int | None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None
    request_id: str | None
    session_id: str | None
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    metadata: Mapping[str, str] | None
    store: bool | None


class GenerateOptions(CommonOptions, total=False):
    """The options of ``generate`` and ``stream``."""

    logprobs: int | None
    echo: bool | None
    best_of: int | None


class ConversationOptions(CommonOptions, total=False):
    """The options of ``chat`` and ``stream_chat``."""

    logprobs: bool | None
    top_logprobs: int | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_effort: str | None
    verbosity: str | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None


class EmbedOptions(TypedDict, total=False):
    """The options of ``embed``."""

    dimensions: int | None
    prompt_name: str | None
    truncate_prompt_tokens: int | None
    add_special_tokens: bool | None
    cache_salt: str | None
    priority: int | None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None
    request_id: str | None
    session_id: str | None
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


# fields that are set in another way
OWN = frozenset({"model", "prompt", "messages", "stream", "stream_options", "return_token_ids", "input", "encoding_format"})


def check_options(
    options: Mapping[str, Any], kind: type[GenerateOptions] | type[ConversationOptions] | type[EmbedOptions]
) -> None:
    """Raise TypeError for an unknown name, as Python does for an argument."""
    known = get_type_hints(kind)
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; {suggestion(name, sorted(known))}")

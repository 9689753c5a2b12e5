"""The fields that clients are known to send beyond those served here: which are refused and which are harmless.

Refused: what would change the answer if it were obeyed, unless it has the value that changes nothing. Harmless: accepted
without effect. All others are unknown, and ``unknown_fields`` of the settings says what becomes of them.
"""

from __future__ import annotations

from typing import Any

from blockwright.api.checks import Body, shown
from blockwright.api.errors import bad_request

# field -> values that ask for nothing (null always does)
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),  # and the value of n: nothing to choose from
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "priority": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

SHARED = frozenset(
    {
        "cache_salt",
        "frequency_penalty",
        "ignore_eos",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
    }
)
CHAT = SHARED | {"messages", "top_logprobs", "max_completion_tokens"}
COMPLETION = SHARED | {"prompt", "max_completion_tokens"}


def _neutral(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(type(value) in (type(a), float) and value == a for a in allowed)


def unknown_fields(body: Body, served: frozenset[str], policy: str) -> tuple[str, ...]:
    """The names that are ignored; raises a 400 for a field that must not be, and for any with policy "reject"."""
    ignored = []
    for name, value in body.items():
        if name in served or name in HARMLESS:
            continue
        if name not in REFUSED:
            ignored.append(name)
        elif value is not None and not _neutral(value, REFUSED[name]) and not (name == "best_of" and value == body.get("n")):
            message = f"{name} ({shown(value)}) is not supported by this server; leave it out"
            raise bad_request(message, name, "unsupported_parameter")
    if ignored and policy == "reject":
        names = ", ".join(shown(name) for name in ignored[:10])
        raise bad_request(f"unknown fields: {names}; leave them out", ignored[0], "unknown_parameter")
    return tuple(ignored)

"""The fields of the generating endpoints: what is taken, with which bounds, and what each means.

One declaration is the parser's, the reference's (``/openapi.json``) and the tests'. Fields that would change the answer and
are not served are refused unless they have the value that changes nothing (``Only``). What stands nowhere here is unknown,
and ``unknown_fields`` of the settings says what becomes of it.
"""

from __future__ import annotations

from blockwright.api.kinds import (
    Anything,
    Biases,
    Field,
    Flag,
    Integer,
    Mapping,
    Number,
    OneOf,
    Only,
    Record,
    Text,
    Texts,
    Tokens,
)
from blockwright.policies.urgency import TIERS

MAX_N = 128  # choices of one prompt
MAX_STOPS, MAX_STOP_LENGTH = 4, 1024  # strings, characters
MAX_BAD_WORDS, MAX_BIASES = 256, 1024
MAX_LOGPROBS = 20
LARGEST = (1 << 31) - 1

STREAM_OPTIONS = (
    Field("include_usage", Flag(), "One more chunk with the usage, before the end mark.", default=False),
    Field("continuous_usage_stats", Flag(), "The usage so far in every chunk.", default=False),
    Field("include_obfuscation", Flag(), "Accepted; nothing is padded here."),
)

SAMPLING = (
    Field("temperature", Number(0, 2), "0 takes the best token; the default is the checkpoint's, or 1."),
    Field("top_p", Number(0, 1, above=True), "Only the best tokens that together have this probability."),
    Field("top_k", Integer(-1, LARGEST), "Only the k best tokens; 0 or -1: all."),
    Field("min_p", Number(0, 1), "Only tokens with this share of the best one's probability.", default=0),
    Field("repetition_penalty", Number(0, 100, above=True), "Above 1: less of what prompt and answer have already."),
    Field("presence_penalty", Number(-2, 2), "Taken from the logit of each token that the answer has.", default=0),
    Field("frequency_penalty", Number(-2, 2), "The same, times the number of times it has it.", default=0),
    Field("logit_bias", Biases(100, MAX_BIASES), "Added to the logits of these token ids."),
    Field("allowed_token_ids", Tokens(1), "Only these tokens."),
    Field(
        "bad_words",
        Texts("bad word", MAX_BAD_WORDS, MAX_STOP_LENGTH),
        "Texts whose last token never comes after the others.",
    ),
    Field("seed", Integer(-(1 << 63), (1 << 64) - 1), "Equal seeds and parameters, equal answers; drawn when missing."),
)

ENDING = (
    Field("stop", Texts("stop string", MAX_STOPS, MAX_STOP_LENGTH, single=True), "The answer ends before one of these."),
    Field("stop_token_ids", Tokens(0, 1024), "The answer ends with one of these tokens, which is not shown."),
    Field("include_stop_str_in_output", Flag(), "Show the stop string or stop token too.", default=False),
    Field("ignore_eos", Flag(), "Go on after the checkpoint's end tokens.", default=False),
    Field("min_tokens", Integer(0, LARGEST), "No end token, stop token or stop string before so many tokens.", default=0),
    Field("max_completion_tokens", Integer(1, LARGEST), "The newer name of max_tokens; it wins."),
)

SHARED = (
    Field("model", Text(), "A model id of /v1/models; the first one when missing."),
    *SAMPLING,
    *ENDING,
    Field("n", Integer(1, MAX_N), "Choices for each prompt.", default=1),
    Field("stream", Flag(), "Server-sent events instead of one answer.", default=False),
    Field("stream_options", Record(STREAM_OPTIONS), "Only with stream."),
    Field("prompt_logprobs", Integer(0, MAX_LOGPROBS), "Log-probabilities of the prompt's tokens; not with stream."),
    Field("return_token_ids", Flag(), "Token ids of prompt and answer.", default=False),
    Field("skip_special_tokens", Flag(), "Leave special tokens out of the text.", default=True),
    Field("truncate_prompt_tokens", Integer(-1, LARGEST), "Only the last so many tokens of the prompt; -1: those that fit."),
    Field("cache_salt", Text(1024), "Only requests with an equal salt share cached prefixes with this one."),
    Field("priority", Integer(-(1 << 31), LARGEST), "Lower runs earlier, within the service tier.", default=0),
    Field("service_tier", OneOf(tuple(TIERS)), "priority and fast run before the others, flex after; echoed as it is used."),
    Field("request_id", Text(128), "A name for /v1/requests, as the header x-request-id."),
    Field("session_id", Text(1024), "Accepted."),
    Field("user", Text(1024), "Accepted."),
    Field("safety_identifier", Text(1024), "Accepted."),
    Field("prompt_cache_key", Text(1024), "Accepted."),
    Field("prompt_cache_retention", Anything(), "Accepted."),
    Field("metadata", Mapping(), "Accepted."),
    Field("store", Flag(), "Accepted; nothing is stored."),
)

_NOT_SERVED = {
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    **{f"guided_{form}": () for form in ("json", "regex", "choice", "grammar", "decoding_backend", "whitespace_pattern")},
}
NOT_SERVED = tuple(Field(name, Only(values), "Not supported.") for name, values in _NOT_SERVED.items())


def _not_served(**fields: tuple[object, ...]) -> tuple[Field, ...]:
    return tuple(Field(name, Only(values), "Not supported.") for name, values in fields.items())


TEMPLATE = (
    Field("add_generation_prompt", Flag(), "End the prompt where the assistant begins to speak.", default=True),
    Field("continue_final_message", Flag(), "Let the answer continue the last message; not with add_generation_prompt."),
    Field("chat_template", Text(), "A template instead of the checkpoint's; refused unless request_chat_template is set."),
    Field("chat_template_kwargs", Mapping(), "More variables for the template."),
)
CHAT_OPTIONS = (
    *SHARED,
    *TEMPLATE,
    Field("max_tokens", Integer(1, LARGEST), "New tokens at most; all that fit when missing."),
    Field("logprobs", Flag(), "Log-probabilities of the answer's tokens.", default=False),
    Field("top_logprobs", Integer(0, MAX_LOGPROBS), "With logprobs: also of the so many best.", default=0),
    Field("add_special_tokens", Flag(), "Let the tokenizer add its own; templates have done it.", default=False),
    Field("parallel_tool_calls", Anything(), "Accepted; there are no tools."),
    Field("prediction", Anything(), "Accepted without effect."),
    *NOT_SERVED,
    *_not_served(
        audio=(),
        echo=(False,),
        modalities=(["text"],),
        reasoning_effort=("none",),
        verbosity=("medium",),
        web_search_options=(),
    ),
)
COMPLETION_OPTIONS = (
    *SHARED,
    Field("max_tokens", Integer(0, LARGEST), "New tokens at most; 0 only with echo.", default=16),
    Field("logprobs", Integer(0, MAX_LOGPROBS), "Log-probabilities of the tokens, and of the so many best."),
    Field("echo", Flag(), "Put the prompt before the answer, with its log-probabilities if logprobs is set.", default=False),
    Field("best_of", Integer(1, MAX_N), "Only the value of n: every choice is returned."),
    Field("add_special_tokens", Flag(), "Let the tokenizer add its own (BOS) to a text prompt.", default=True),
    *NOT_SERVED,
    *_not_served(suffix=("",)),
)

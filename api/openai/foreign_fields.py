"""Fields of other servers' APIs that choose or shape the answer there: each is refused with our name for it, or a remedy.

Otherwise they would be unknown, hence ignored, and the answer would silently differ. A value that requests nothing is still
ignored. Fields that only concern the other server (``keep_alive``, ``cache_prompt``) are not listed. A misspelling of one of
our own fields is refused, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...policies.nearest import edits
from ..checks import Body, shown
from ..errors import ApiError, bad_request
from .field_types import Field, equals_any

NOTHING: tuple[Any, ...] = ("", [], {}, False)  # values that request nothing, for most fields
LOOKED_AT = 256  # most names of a body that are compared with ours; each takes some ten microseconds
SHORT, LONG = 4, 9  # from these lengths on, names with one and two wrong letters count as misspellings


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field of another API.

    ``remedy``: half a sentence, after a semicolon. ``neutral``: values that request nothing. ``named``: our own field.
    ``switches``: foreign fields that it depends on; it is ignored if one of them is off, since it has no effect elsewhere
    then.
    """

    remedy: str
    neutral: tuple[Any, ...] = NOTHING
    named: str = ""
    switches: tuple[str, ...] = ()


ADAPTER = ForeignField("an adapter is a model here: send model = {value}", (*NOTHING, "__base_model__"))
STRUCTURED = ForeignField("structured output is not supported yet; leave it out", ("", False))
TEMPLATE = ForeignField("the chat template is the checkpoint's own; leave it out")
SWITCH = ForeignField('switches of a chat template go into chat_template_kwargs, such as {{"enable_thinking": false}}', ())
MEDIA = ForeignField("only text is read and generated; leave it out")
INSIDE = ForeignField("its fields stand in the body itself here: send them beside model")
BEAMS = ForeignField("there is no beam search; leave it out", (*NOTHING, 0, 1))
HISTORY = ForeignField("nothing is remembered between requests: send the whole conversation in messages")
EMBEDDED = ForeignField("a prompt is text or token ids; send prompt")
DRAFTS = ForeignField("drafts are chosen by draft and draft_tokens here: send draft = 'auto'", (*NOTHING, 0), "draft")
DRAFT_MODEL = ForeignField("drafts by another model are not built yet: send draft = 'auto'")
TOOLS = ForeignField("tools are not supported yet; leave it out", (*NOTHING, "none"))
_OWN = "temperature, top_k, top_p, min_p and the penalties are the samplers here; leave it out"


def _sampler(*neutral: Any, switches: tuple[str, ...] = ()) -> ForeignField:
    return ForeignField(_OWN, (*NOTHING, *neutral), switches=switches)


def _renamed(name: str, *neutral: Any) -> ForeignField:
    return ForeignField(f"it is called {name} here: send {name}", (*NOTHING, *neutral), name)


CHOOSING = {
    **dict.fromkeys(("adapter", "adapter_id", "adapter_name", "adapters", "merged_adapters", "adapter_parameters"), ADAPTER),
    **dict.fromkeys(("lora", "loras", "lora_id", "lora_name", "lora_path", "lora_request", "lora_adapters"), ADAPTER),
    "adapter_source": ForeignField("an adapter is a model here, which the server was started with: leave it out"),
    "base_model": _renamed("model"),
    "deployment": _renamed("model"),
    "deployment_id": _renamed("model"),
    "engine": _renamed("model"),
    "model_id": _renamed("model"),
    "model_name": _renamed("model"),
    "models": ForeignField("one model answers: send model"),
}
PROMPTING = {
    "add_bos_token": _renamed("add_special_tokens"),
    "add_special": _renamed("add_special_tokens"),
    "apply_chat_template": ForeignField("/v1/chat/completions applies the chat template: send messages there"),
    "chat_history": _renamed("messages"),
    "contents": _renamed("messages"),
    "context": HISTORY,
    "conversation": HISTORY,
    "conversation_id": HISTORY,
    "enable_thinking": SWITCH,
    "images": MEDIA,
    "image_data": MEDIA,
    "audio_data": MEDIA,
    "video_data": MEDIA,
    "multi_modal_data": MEDIA,
    "input": ForeignField("it is called prompt or messages here: send that"),
    "inputs": _renamed("prompt"),
    "input_embeds": EMBEDDED,
    "input_ids": _renamed("prompt"),
    "input_prefix": ForeignField("nothing is filled in between texts; send prompt"),
    "input_suffix": ForeignField("nothing is filled in between texts; send prompt"),
    "input_extra": ForeignField("nothing is filled in between texts; send prompt"),
    "instructions": ForeignField("instructions are a message of role system: send it in messages"),
    "message": _renamed("messages"),
    "negative_prompt": ForeignField("there is no guidance by a second prompt; leave it out"),
    "preamble": ForeignField("a preamble is a message of role system: send it in messages"),
    "previous_response_id": HISTORY,
    "prompt_embeds": EMBEDDED,
    "prompt_token_ids": _renamed("prompt"),
    "raw": ForeignField("/v1/completions applies no chat template: send prompt there"),
    "suffix": ForeignField("nothing is filled in between texts; leave it out"),
    "system": ForeignField("a system prompt is a message of role system: send it in messages"),
    "system_instruction": ForeignField("a system prompt is a message of role system: send it in messages"),
    "system_prompt": ForeignField("a system prompt is a message of role system: send it in messages"),
    "template": TEMPLATE,
    "text_input": _renamed("prompt"),
    "think": SWITCH,
    "thinking": SWITCH,
    "tool_config": TOOLS,
    "tools": TOOLS,
    "truncate": _renamed("truncate_prompt_tokens"),
}
SAMPLING = {
    # other names for our fields
    "banned_tokens": _renamed("bad_words"),
    "candidate_count": _renamed("n", 1),
    "custom_stopping_strings": _renamed("stop"),
    "custom_token_bans": _renamed("bad_words"),
    "decoder_input_details": _renamed("prompt_logprobs"),
    "do_sample": ForeignField("temperature = 0 takes the most probable token: send temperature", (True,)),
    "ignore_eos_token": _renamed("ignore_eos"),
    "max_length": _renamed("max_tokens"),
    "max_new_tokens": _renamed("max_tokens"),
    "max_output_tokens": _renamed("max_tokens"),
    "max_tokens_to_sample": _renamed("max_tokens"),
    "min_length": _renamed("min_tokens", 0),
    "min_new_tokens": _renamed("min_tokens", 0),
    "n_cmpl": _renamed("n", 1),
    "n_predict": _renamed("max_tokens"),
    "n_probs": _renamed("logprobs", 0),
    "no_stop_trim": _renamed("include_stop_str_in_output"),
    "num_predict": _renamed("max_tokens"),
    "num_return_sequences": _renamed("n", 1),
    "random_seed": _renamed("seed"),
    "sampler_seed": _renamed("seed"),
    "eos_token_id": _renamed("stop_token_ids"),
    "greedy": ForeignField("send temperature = 0", (False,)),
    "repetition_penalties": _renamed("repetition_penalty"),
    "sampling": INSIDE,
    "rep_pen": _renamed("repetition_penalty", 1),
    "repeat_penalty": _renamed("repetition_penalty", 1),
    "return_full_text": _renamed("echo"),
    "stop_sequence": _renamed("stop"),
    "stop_sequences": _renamed("stop"),
    "stop_strings": _renamed("stop"),
    "stop_tokens": _renamed("stop_token_ids"),
    "stop_words": _renamed("stop"),
    "temp": _renamed("temperature"),
    "token_healing": ForeignField("the last token of a prompt is kept as it is; leave it out"),
    "top_n_tokens": _renamed("logprobs", 0),
    # drafts
    "assistant_model": DRAFT_MODEL,
    "draft_model": DRAFT_MODEL,
    "n_draft": _renamed("draft_tokens", 0),
    "num_assistant_tokens": _renamed("draft_tokens", 0),
    "num_speculative_tokens": _renamed("draft_tokens", 0),
    "prompt_lookup_max": DRAFTS,
    "prompt_lookup_min": DRAFTS,
    "prompt_lookup_num_tokens": _renamed("draft_tokens", 0),
    "speculative.n_max": _renamed("draft_tokens", 0),
    "speculative_num_draft_tokens": _renamed("draft_tokens", 0),
    "speculative_model": DRAFT_MODEL,
    "speculative_draft_model_path": DRAFT_MODEL,
    # groups of fields
    "extra_body": INSIDE,
    "generation_config": INSIDE,
    "generation_kwargs": INSIDE,
    "parameters": INSIDE,
    "sampling_params": INSIDE,
    # samplers and penalties that we do not have
    "ban_eos_token": _renamed("ignore_eos"),
    "beam_width": BEAMS,
    "num_beams": BEAMS,
    "num_beam_groups": BEAMS,
    "early_stopping": BEAMS,
    "diversity_penalty": BEAMS,
    "custom_logit_processor": _sampler(),
    "custom_params": _sampler(),
    "dry_allowed_length": _sampler(switches=("dry_multiplier",)),
    "dry_base": _sampler(switches=("dry_multiplier",)),
    "dry_multiplier": _sampler(0),
    "dry_penalty_last_n": _sampler(switches=("dry_multiplier",)),
    "dry_sequence_breakers": _sampler(switches=("dry_multiplier",)),
    "dynamic_temperature": _sampler(),
    "dynatemp_exponent": _sampler(1, switches=("dynatemp_range",)),
    "dynatemp_high": _sampler(0, switches=("dynamic_temperature",)),
    "dynatemp_low": _sampler(0, switches=("dynamic_temperature",)),
    "dynatemp_range": _sampler(0),
    "encoder_repetition_penalty": _sampler(1),
    "epsilon_cutoff": _sampler(0),
    "eta_cutoff": _sampler(0),
    "guidance_scale": _sampler(1),
    "min_keep": _sampler(0),
    "mirostat": _sampler(0),
    "mirostat_eta": _sampler(switches=("mirostat", "mirostat_mode")),
    "mirostat_mode": _sampler(0),
    "mirostat_tau": _sampler(switches=("mirostat", "mirostat_mode")),
    "no_repeat_ngram_size": _sampler(0),
    "nsigma": _sampler(0, -1),
    "penalize_newline": _sampler(),
    "penalize_nl": _sampler(),
    "penalty_alpha": _sampler(0),
    "penalty_last_n": ForeignField("repetition_penalty counts the whole prompt and answer; leave it out", (-1,)),
    "rep_pen_range": ForeignField("repetition_penalty counts the whole prompt and answer; leave it out", (-1,)),
    "repeat_last_n": ForeignField("repetition_penalty counts the whole prompt and answer; leave it out", (-1,)),
    "rep_pen_slope": _sampler(0, 1),
    "repetition_detection": _sampler(),
    "sampler_order": _sampler(),
    "sampler_priority": _sampler(),
    "sampler_seq": _sampler(),
    "samplers": _sampler(),
    "smoothing_curve": _sampler(1),
    "smoothing_factor": _sampler(0),
    "temperature_last": _sampler(),
    "tfs": _sampler(1),
    "tfs_z": _sampler(1),
    "top_a": _sampler(0),
    "top_n_sigma": _sampler(0, -1),
    "typical": _sampler(0, 1),
    "typical_p": _sampler(0, 1),
    "watermark": _sampler(),
    "xtc_probability": _sampler(0),
    "xtc_threshold": _sampler(switches=("xtc_probability",)),
    # the form of the answer
    "ebnf": STRUCTURED,
    "format": STRUCTURED,
    "grammar": STRUCTURED,
    "grammar_lazy": STRUCTURED,
    "grammar_string": STRUCTURED,
    "grammar_triggers": replace(STRUCTURED, neutral=NOTHING),
    "json_mode": STRUCTURED,
    "json_schema": STRUCTURED,
    "regex": STRUCTURED,
    "response_schema": STRUCTURED,
    "schema": STRUCTURED,
    "stop_regex": ForeignField("stop takes plain texts: send stop"),
    "structural_tag": STRUCTURED,
    "mcp_servers": TOOLS,
    "plugins": TOOLS,
    "toolset": TOOLS,
    "web_search": TOOLS,
    "thinking_token_budget": ForeignField("thinking is not counted apart from the answer: send max_tokens"),
    "thinking_budget": ForeignField("thinking is not counted apart from the answer: send max_tokens"),
}
GENERATING = {**CHOOSING, **PROMPTING, **SAMPLING}
TOKENIZING = {
    **CHOOSING,
    **PROMPTING,
    "content": _renamed("prompt"),
    "text": _renamed("prompt"),
    "with_pieces": _renamed("return_token_strs"),
}
DETOKENIZING = {**CHOOSING, "ids": _renamed("tokens"), "input_ids": _renamed("tokens"), "token_ids": _renamed("tokens")}
BEGINNINGS = {  # families of fields by prefix, so that later additions to them are refused, too
    "guided_": STRUCTURED,
    "mirostat_": _sampler(switches=("mirostat", "mirostat_mode")),
    "dynatemp_": _sampler(0, switches=("dynatemp_range",)),
    "dry_": _sampler(switches=("dry_multiplier",)),
    "xtc_": _sampler(switches=("xtc_probability",)),
    "lora_": ADAPTER,
    "adapter_": ADAPTER,
    "speculative": DRAFTS,  # vLLM and SGLang name theirs speculative_..., llama.cpp speculative....
}
GROUPS = ("options",)  # objects whose fields are checked like the body's (ollama); the harmless ones are ignored


class ForeignFields:
    """The fields that an endpoint refuses: ``foreign`` by name, and misspellings of ``fields`` that are not ``harmless``."""

    def __init__(self, foreign: Mapping[str, ForeignField], fields: Iterable[Field], harmless: Iterable[str] = ()) -> None:
        own = [field.name for field in fields]
        self._known, quiet = frozenset(own), frozenset(harmless)
        self._foreign = {_plain(name): one for name, one in foreign.items() if name not in self._known}
        self._own = {_plain(name): name for name in own if name not in quiet}
        self._beginnings = BEGINNINGS if "format" in foreign else {}

    def check(self, body: Body) -> None:
        """Raise a 400 for the first field that would be ignored although it chooses or shapes the answer."""
        looked = 0
        for name, value in body.items():
            if name in self._known or value is None:
                continue
            looked += 1
            self._check_one(name, value, body, looked <= LOOKED_AT)
            if name in GROUPS and isinstance(value, dict):
                self._check_group(name, value)

    def _check_one(self, name: str, value: Any, body: Body, near: bool) -> None:
        plain = _plain(name)
        foreign = self._foreign.get(plain) or next(
            (one for begin, one in self._beginnings.items() if name.startswith(begin)), None
        )
        if foreign is not None:
            if not (
                equals_any(value, foreign.neutral) or self._is_off(foreign, body) or _is_told(foreign.named, value, body)
            ):
                raise _refusal(name, value, foreign)
        elif near and (own := self._own.get(plain) or self._misspelt(plain)) and not _is_told(own, value, body):
            message = f"{name} is not a field of this endpoint; did you mean {own}?"
            raise bad_request(message, name, "unknown_parameter")

    def _is_off(self, foreign: ForeignField, body: Body) -> bool:
        """Return True if the body turns off the feature that the field belongs to."""
        switches = [(self._foreign[_plain(name)], body[name]) for name in foreign.switches if name in body]
        return any(equals_any(value, (None, *switch.neutral)) for switch, value in switches)

    def _misspelt(self, plain: str) -> str:
        """Return the field of ours that the name misspells by one letter (two in a long name), or an empty text."""
        allowed = 0 if len(plain) < SHORT else 1 if len(plain) < LONG else 2
        near = [one for one in self._own if len(one) >= SHORT and abs(len(one) - len(plain)) <= allowed]
        found = [(distance, one) for one in near if (distance := edits(plain, one)) <= allowed]
        return self._own[min(found)[1]] if found else ""

    def _check_group(self, group: str, inner: Body) -> None:
        """Raise a 400 for a field in a group that is a field of ours, or that would be refused in the body."""
        for name, value in inner.items():
            if name in self._known and value is not None and value not in ([], ""):
                message = f"{group}.{name} would be ignored; send {name} in the body itself, beside model"
                raise bad_request(message, f"{group}.{name}", "unsupported_parameter")
        try:
            self.check({name: value for name, value in inner.items() if name not in GROUPS})
        except ApiError as error:
            raise bad_request(f"{group}.{error.message}", f"{group}.{error.param}", error.code) from None


def _plain(name: str) -> str:
    """Return a name without case and separators: maxTokens, max-tokens and max_tokens are one."""
    return name.casefold().replace("_", "").replace("-", "").replace(".", "").replace(" ", "")


def _is_told(own: str, value: Any, body: Body) -> bool:
    """Return True if the body has the same value under our own name, so that nothing is lost."""
    return bool(own) and own in body and equals_any(value, (body[own],))


def _refusal(name: str, value: Any, foreign: ForeignField) -> ApiError:
    example = repr(value) if isinstance(value, str) and len(value) <= 64 else "its name"
    remedy = foreign.remedy.format(value=example)
    message = f"{name} ({shown(value)}) is not supported by this server; {remedy}"
    return bad_request(message, name, "unsupported_parameter")

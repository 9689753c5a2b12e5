"""Fields of other servers' APIs that choose or shape the answer there, each with our name for it, or a remedy.

``refused_fields.py`` refuses them: they would be unknown, hence ignored, and the answer would silently differ. The tables
have fields by name, by the beginning of a name (``BEGINNINGS``), and by a word in it (``FAMILIES``), so that unlisted ones
are met, too. Fields that only concern the other server (``keep_alive``, ``cache_prompt``) are not listed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

NOTHING: tuple[Any, ...] = ("", [], {}, False)  # values that request nothing, for most fields


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
STRUCTURED = ForeignField(
    "response_format and structured_outputs constrain an answer here: send one of them", ("", False), "structured_outputs"
)
TEMPLATE = ForeignField("the chat template is the checkpoint's own; leave it out")
SWITCH = ForeignField('switches of a chat template go into chat_template_kwargs, such as {{"enable_thinking": false}}', ())
MEDIA = ForeignField("only text is read and generated; leave it out")
INSIDE = ForeignField("its fields stand in the body itself here: send them beside model")
BEAMS = ForeignField("there is no beam search; leave it out", (*NOTHING, 0, 1))
HISTORY = ForeignField("nothing is remembered between requests: send the whole conversation in messages")
EMBEDDED = ForeignField("a prompt is text or token ids; send prompt")
DRAFTS = ForeignField("drafts are chosen by draft and draft_tokens here: send draft = 'auto'", (*NOTHING, 0), "draft")
DRAFT_MODEL = ForeignField("a served model drafts if draft names it here: send draft = {value}", NOTHING, "draft")
TOOLS = ForeignField("tools are functions that the client runs: send tools in a chat, or leave it out", (*NOTHING, "none"))
FILLED = ForeignField("nothing is filled in between texts; send prompt")
SYSTEM = ForeignField("a system prompt is a message of role system: send it in messages")
BEGUN = ForeignField("send the beginning of the answer as the last message, with continue_final_message")
GUIDED = ForeignField("there is no guidance by a second prompt; leave it out", (*NOTHING, 1))
REASONING = ForeignField("reasoning is separated where the model's turn template tells it apart; leave it out")
COUNTED = ForeignField("repetition_penalty counts the whole prompt and answer; leave it out", (-1,))
BANNED = ForeignField("bad_words, allowed_token_ids and logit_bias rule out tokens here: send one of them")
LENGTHS = ForeignField("max_tokens and min_tokens bound an answer, truncate_prompt_tokens a prompt: send one of them")
ENDS = ForeignField("an answer ends at stop, stop_token_ids or max_tokens: send one of them")
TIMED = ForeignField("an answer ends at max_tokens, not after a time: send max_tokens", (*NOTHING, 0, -1))
RETURNED = ForeignField(
    "logprobs, prompt_logprobs, return_token_ids and echo add to an answer: send one of them", (*NOTHING, 0)
)
MODERATED = ForeignField("answers are not filtered; leave it out")
ROUTED = ForeignField("one model answers, and nothing is changed on the way to it: send model")
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
    "model_path": _renamed("model"),
    "variant": _renamed("model"),
    "checkpoint": _renamed("model"),
    **dict.fromkeys(("finetune", "fine_tune_id", "fine_tuning_id", "fine_tuned_model", "active_adapters", "peft"), ADAPTER),
    **dict.fromkeys(("preset", "provider", "route", "transforms"), ROUTED),
    "models": ForeignField("one model answers: send model"),
}
PROMPTING = {
    "add_bos_token": _renamed("add_special_tokens"),
    "add_special": _renamed("add_special_tokens"),
    "apply_chat_template": ForeignField("/v1/chat/completions applies the chat template: send messages there"),
    **dict.fromkeys(("assistant_prefix", "prefill", "response_prefix", "partial", "prefix", "continue_"), BEGUN),
    **dict.fromkeys(("assistant_id", "parent_message_id", "session_params", "thread_id", "interactive_mode"), HISTORY),
    **dict.fromkeys(("bot_name", "character", "greeting", "guideline", "memory", "role_mapping", "user_bio"), FILLED),
    "do_preprocess": ForeignField("/v1/completions applies no chat template: send prompt there", (True,)),
    "question": _renamed("messages"),
    "query": _renamed("messages"),
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
    "input_prefix": FILLED,
    "input_suffix": FILLED,
    "input_extra": FILLED,
    "instructions": ForeignField("instructions are a message of role system: send it in messages"),
    "message": _renamed("messages"),
    "negative_prompt": GUIDED,
    "preamble": ForeignField("a preamble is a message of role system: send it in messages"),
    "previous_response_id": HISTORY,
    "prompt_embeds": EMBEDDED,
    "prompt_token_ids": _renamed("prompt"),
    "raw_prompting": ForeignField("/v1/completions applies no chat template: send prompt there"),
    "raw": ForeignField("/v1/completions applies no chat template: send prompt there"),
    "suffix": ForeignField("nothing is filled in between texts; leave it out"),
    "system": SYSTEM,
    "system_instruction": SYSTEM,
    "system_prompt": SYSTEM,
    "template": TEMPLATE,
    "text": ForeignField("it is called prompt or messages here, and an answer is plain text: send one of them"),
    "text_input": _renamed("prompt"),
    "text_inputs": _renamed("prompt"),
    "think": SWITCH,
    "thinking": SWITCH,
    "reasoning": SWITCH,
    "thinking_forced_open": SWITCH,
    "tool_config": TOOLS,
    "tools": TOOLS,
    **dict.fromkeys(
        (
            *("truncate", "truncation_length", "truncation_side", "prompt_truncate_len", "prompt_ignore_length"),
            *("max_prompt_tokens", "max_input_tokens", "max_input_length"),
        ),
        _renamed("truncate_prompt_tokens"),
    ),
    "context_length_exceeded_behavior": ForeignField(
        "it is called truncate_prompt_tokens here: send truncate_prompt_tokens", (*NOTHING, "error")
    ),
    "truncation": ForeignField(
        "it is called truncate_prompt_tokens here: send truncate_prompt_tokens", (*NOTHING, "disabled")
    ),
}
SAMPLING = {
    # other names for our fields
    "banned_tokens": _renamed("bad_words"),
    "banned_strings": _renamed("bad_words"),
    "banned_words": _renamed("bad_words"),
    "bad_words_ids": _renamed("bad_words"),
    "bypass_eos": _renamed("ignore_eos"),
    "candidate_count": _renamed("n", 1),
    **dict.fromkeys(("num_choices", "num_completions", "num_generations", "num_samples"), _renamed("n", 1)),
    "clean_up_tokenization_spaces": ForeignField("an answer's text is as its tokens say; leave it out"),
    "details": _renamed("logprobs"),
    "k": _renamed("top_k"),
    "p": _renamed("top_p"),
    "custom_stopping_strings": _renamed("stop"),
    "custom_token_bans": _renamed("bad_words"),
    "decoder_input_details": _renamed("prompt_logprobs"),
    "do_sample": ForeignField("temperature = 0 takes the most probable token: send temperature", (True,)),
    "ignore_eos_token": _renamed("ignore_eos"),
    **dict.fromkeys(("max_gen_len", "max_gen_toks", "max_new_token", "max_generated_tokens"), _renamed("max_tokens")),
    **dict.fromkeys(("output_len", "request_output_len"), _renamed("max_tokens")),
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
    "sampling_seed": _renamed("seed"),
    "render_special": _renamed("skip_special_tokens"),
    "decode_special": _renamed("skip_special_tokens"),
    "detokenize": _renamed("return_token_ids", True),
    "return_tokens": _renamed("return_token_ids"),
    "return_logprob": _renamed("logprobs"),
    "return_logprobs": _renamed("logprobs"),
    "top_logprobs_num": _renamed("logprobs", 0),
    "skip_prompt": _renamed("echo", True),
    "echo_last": _renamed("echo", 0),
    "eos_token_id": _renamed("stop_token_ids"),
    "end_id": _renamed("stop_token_ids"),
    "end_token": _renamed("stop"),
    "stop_id": _renamed("stop_token_ids"),
    "stop_ids": _renamed("stop_token_ids"),
    **dict.fromkeys(("max_time", "t_max_predict_ms", "t_max_prompt_ms"), TIMED),
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
    "penalty_last_n": COUNTED,
    "rep_pen_range": COUNTED,
    "repeat_last_n": COUNTED,
    "rep_pen_slope": _sampler(0, 1),
    "repetition_detection": _sampler(),
    "sampler_order": _sampler(),
    "sampler_priority": _sampler(),
    "sampler_seq": _sampler(),
    "samplers": _sampler(),
    "smoothing_curve": _sampler(1),
    "smoothing_factor": _sampler(0),
    "adaptive_target": _sampler(-1, switches=()),
    "adaptive_decay": _sampler(switches=("adaptive_target",)),
    "cfg_scale": GUIDED,
    "n_indent": _sampler(0),
    "skew": _sampler(0),
    "penalty_range": COUNTED,
    "repetition_context_size": COUNTED,
    "repetition_range": COUNTED,
    "quadratic_sampling": _sampler(0),
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
    **dict.fromkeys(("cfg", "choice", "choices", "constraint", "constraints", "lark"), replace(STRUCTURED, neutral=NOTHING)),
    "include_reasoning": ForeignField(REASONING.remedy, (True,)),
    "separate_reasoning": REASONING,
    "reasoning_format": ForeignField(REASONING.remedy, (*NOTHING, "none")),
    "reasoning_in_content": ForeignField(REASONING.remedy, (True,)),
    "raw_output": RETURNED,
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
    "max_tool_calls": TOOLS,
    "guardrails": MODERATED,
    "safe_prompt": MODERATED,
    "compliance": MODERATED,
    "background": ForeignField("answers that are fetched later are batches: send the request to /v1/batches"),
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
ADDING = {  # fields of an addition of a model
    **{name: one for name, one in SAMPLING.items() if one.named in ("max_tokens", "repetition_penalty", "seed", "stop")},
    **dict.fromkeys(
        ("temp", "k", "p"), ForeignField("the defaults of a model are called temperature, top_k and top_p here")
    ),
    **dict.fromkeys(
        ("base_model", "base_model_name", "base_model_name_or_path", "base_model_id", "parent"), _renamed("base")
    ),
    **dict.fromkeys(("lora_name", "adapter_name", "model", "model_id", "model_name", "id"), _renamed("name")),
    **dict.fromkeys(("lora_path", "adapter_path", "model_path", "checkpoint", "folder", "source"), _renamed("path")),
    **dict.fromkeys(("system_prompt", "system_message", "instructions", "preamble"), _renamed("system")),
}
LOADING = {  # fields of vLLM's addition of an adapter, which has no defaults
    **dict.fromkeys(("base", "base_model", "base_model_name_or_path", "parent"), _renamed("base_model_name")),
    **dict.fromkeys(("name", "adapter_name", "model", "model_name"), _renamed("lora_name")),
    **dict.fromkeys(("path", "adapter_path", "source"), _renamed("lora_path")),
    **dict.fromkeys(("replace", "inplace"), _renamed("load_inplace")),
}
# families by a word of the name, the first one that a name has; "max_..._tokens" has the words max and tokens
FAMILIES = {
    **dict.fromkeys(("lora", "loras", "adapter", "adapters", "peft"), ADAPTER),
    **dict.fromkeys(("model", "models"), _renamed("model")),
    **dict.fromkeys(("grammar", "regex", "regexp", "gbnf", "ebnf", "bnf", "xgrammar", "outlines"), STRUCTURED),
    **dict.fromkeys(("json", "schema", "guided", "structured", "structural", "format", "mime"), STRUCTURED),
    **dict.fromkeys(("tool", "tools", "tooling", "function", "functions", "mcp", "plugins", "search"), TOOLS),
    **dict.fromkeys(("integrations", "connectors", "documents", "citation", "citations"), TOOLS),
    **dict.fromkeys(("image", "images", "audio", "video", "videos", "media", "vision", "multimodal"), MEDIA),
    **dict.fromkeys(("think", "thinking", "reason", "reasoning"), SWITCH),
    **dict.fromkeys(("template", "templates"), TEMPLATE),
    **dict.fromkeys(("history", "conversation"), HISTORY),
    **dict.fromkeys(("embeds", "embedding", "embeddings", "steering", "vector", "vectors", "soft"), EMBEDDED),
    **dict.fromkeys(("system", "developer", "persona", "instruction", "instructions"), SYSTEM),
    **dict.fromkeys(("negative", "guidance"), GUIDED),
    **dict.fromkeys(("ban", "bans", "banned", "suppress", "suppressed", "forced", "force", "disallowed"), BANNED),
    **dict.fromkeys(("penalty", "penalties", "penalize", "repetition", "temperature", "temp"), _sampler(0)),
    **dict.fromkeys(("sampler", "samplers", "sampling", "beam", "beams", "logit", "logits", "bias"), _sampler(0)),
    **dict.fromkeys(("mirostat", "dynatemp", "typical", "smoothing", "entropy", "greedy", "top", "watermark"), _sampler(0)),
    "seed": _renamed("seed"),
    **dict.fromkeys(("stop", "stops", "stopping", "eos", "eot"), ENDS),
    "bos": _renamed("add_special_tokens"),
    **dict.fromkeys(("prompt", "prompts"), FILLED),
    **dict.fromkeys(("prefix", "suffix", "prefill"), FILLED),
    **dict.fromkeys(("logprob", "logprobs", "probs", "scores", "return", "returned"), RETURNED),
    **dict.fromkeys(("response", "output", "outputs"), RETURNED),
    "echo": _renamed("echo"),
    **dict.fromkeys(("safety", "safe", "moderation", "guardrail"), MODERATED),
}
BOUNDS = (("max", "min", "num", "limit", "n"), ("token", "tokens", "toks", "length", "len", "new"))
QUIET_WORDS = frozenset(  # names with one of these concern the speed or the bookkeeping of another server
    (
        *("cache", "cached", "caching", "draft", "speculative", "speculation", "lookahead", "lookup", "assistant"),
        *("metrics", "metadata", "usage", "stats", "timings", "timing", "trace", "cost", "stream", "streaming", "progress"),
        *("second", "ctx", "context", "retries", "timeout", "seconds", "parse", "preserved", "obfuscation", "disaggregated"),
    )
)

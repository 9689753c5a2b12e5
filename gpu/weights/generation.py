"""generation_config.json (or config.json): the defaults of an answer, and the names of fields that are not applied.

``APPLIED`` fields are used here. ``SILENT`` ones change neither tokens nor lengths of a decoder without beams. Every other
field, even one that no library knows, is reported unless it has a value that changes nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..model.config import GenerationDefaults, ModelConfig, WeightedTokens
from ..model.fields import LARGEST, Fields
from .checkpoint_files import CONFIG, GENERATION, CheckpointFiles, read_json

MAX_STOPS, MAX_STOP_LENGTH = 16, 1024  # strings, characters: each costs time for every character of an answer
APPLIED = (
    *("bad_words_ids", "begin_suppress_tokens", "do_sample", "eos_token_id", "max_length", "max_new_tokens", "min_length"),
    *("min_new_tokens", "min_p", "no_repeat_ngram_size", "repetition_penalty", "sequence_bias", "stop_strings"),
    *("suppress_tokens", "temperature", "top_k", "top_p"),
)
SILENT = (
    *("_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight"),
    *("assistant_lookbehind", "bos_token_id", "cache_config", "compile_config"),
    *("continuous_batching_config", "decoder_start_token_id", "disable_compile", "early_stopping", "is_assistant"),
    *("length_penalty", "low_memory", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "output_attentions", "output_hidden_states", "output_logits", "output_scores"),
    *("pad_token_id", "prefill_chunk_size", "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits"),
    *("return_dict_in_generate", "speculation_type", "target_lookbehind", "transformers_version", "use_cache", "use_mtp"),
)
NEUTRAL: dict[str, tuple[Any, ...]] = {  # for fields that are not applied: the values that change nothing
    "cache_implementation": (  # "quantized" changes the numbers
        *("dynamic", "offloaded", "offloaded_hybrid", "offloaded_hybrid_chunked", "offloaded_static", "paged", "static"),
        *("hybrid", "hybrid_chunked", "sliding_window"),
    ),
    "diversity_penalty": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "guidance_scale": (1,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "token_healing": (False,),
    "typical_p": (1,),
}


OTHERS = (  # reported unless they are empty
    *("constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id"),
    *("forced_eos_token_id", "max_time", "top_h", "watermarking_config"),
)
_IN_CONFIG = ({*APPLIED} - {"eos_token_id"}) | {*NEUTRAL, *OTHERS}


def read_generation(files: CheckpointFiles, config: ModelConfig) -> GenerationDefaults:
    """Return the values of generation_config.json, with config.json's end tokens and neutral values as defaults.

    Without that file config.json has the values, as in transformers. Token ids beyond the vocabulary are left out. Raises
    CheckpointError for a value of the wrong type.
    """
    fields = Fields(_source(files), _values(files))
    ends = fields.token_ids("eos_token_id", config.eos_token_ids)
    return GenerationDefaults(
        temperature=fields.number_within("temperature", 1.0, 0.0, math.inf),
        top_p=fields.number_within("top_p", 1.0, 0.0, 1.0),
        top_k=fields.integer("top_k", 0, least=0),
        min_p=fields.number_within("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number_within("repetition_penalty", 1.0, 0.0, math.inf, above=True),
        do_sample=fields.flag("do_sample") if fields.has("do_sample") else None,
        eos_token_ids=ends,
        min_length=0 if fields.has("min_new_tokens") else fields.integer("min_length", 0, least=0),  # as in transformers
        min_new_tokens=fields.integer("min_new_tokens", 0, least=0),
        max_length=fields.integer("max_length", 0, least=0),
        max_new_tokens=fields.integer("max_new_tokens", 0, least=0),
        no_repeat_ngram=fields.integer("no_repeat_ngram_size", 0, least=0),
        suppressed=_known(fields.token_ids("suppress_tokens"), config),
        suppressed_first=_known(fields.token_ids("begin_suppress_tokens"), config),
        banned=_banned(fields, config, ends),
        biases=_biases(fields, config),
        stop_strings=_stop_strings(fields),
        unapplied=_unapplied(fields),
    )


def _values(files: CheckpointFiles) -> dict[str, Any]:
    """Return the fields of all folders.

    A base without the file has the fields of its config.json, where older releases kept them.
    """
    values, base = files.merged(GENERATION), files.folders[-1]
    if (base / GENERATION).is_file():
        return values
    config = read_json(base, CONFIG)
    return {name: config[name] for name in _IN_CONFIG if config.get(name) is not None} | values


def _source(files: CheckpointFiles) -> Path:
    """Return the path to name for a wrong value."""
    found = files.find(GENERATION)
    return found if found.is_file() else files.folders[-1] / CONFIG


def _known(ids: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    return tuple(token for token in ids if token < config.vocabulary)


def _is_sequence(value: object) -> bool:
    """Return whether the value is a list of token ids, at least one."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= LARGEST for i in value)
    )


def _banned(fields: Fields, config: ModelConfig, ends: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of ``bad_words_ids``. An end token by itself is never banned, as in transformers."""
    given = fields.values.get("bad_words_ids")
    if given is None:
        return ()
    if not isinstance(given, list) or not all(_is_sequence(one) for one in given):
        raise fields.wrong("bad_words_ids", "a list of lists of token ids")
    lone = {(end,) for end in ends}
    return tuple(ids for ids in map(tuple, given) if ids not in lone and max(ids) < config.vocabulary)


def _biases(fields: Fields, config: ModelConfig) -> tuple[WeightedTokens, ...]:
    given = fields.values.get("sequence_bias")
    if given is None:
        return ()
    pairs = given if isinstance(given, list) else []
    paired = all(isinstance(one, list) and len(one) == 2 and _is_sequence(one[0]) for one in pairs)
    if not isinstance(given, list) or not paired:
        raise fields.wrong("sequence_bias", "a list of pairs, each a list of token ids and a number")
    read = [(tuple(ids), Fields(fields.source, {"sequence_bias": bias}).number("sequence_bias")) for ids, bias in pairs]
    return tuple(WeightedTokens(ids, bias) for ids, bias in read if max(ids) < config.vocabulary)


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    given = fields.values.get("stop_strings")
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise fields.wrong("stop_strings", "a string or a list of strings")
    if len(texts) > MAX_STOPS or max(map(len, texts), default=0) > MAX_STOP_LENGTH:
        raise fields.wrong("stop_strings", f"at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH} characters")
    return tuple(text for text in texts if text)


def _unapplied(fields: Fields) -> tuple[str, ...]:
    """Return the names of the fields that are set and neither applied nor without effect."""
    found = []
    for name, value in fields.values.items():
        if value is None or name in APPLIED or name in SILENT or value in ([], {}, ""):
            continue
        if not any(value == neutral for neutral in NEUTRAL.get(name, ())):
            found.append(name)
    return tuple(sorted(found))

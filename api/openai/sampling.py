"""Sampling parameters of each sequence, from a request's options and a checkpoint's defaults.

All checks that need the model are here: token ids against the vocabulary, bad words against the tokenizer. Each refusal is a
400 that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...policies.plan.sampling import SamplingParams, TokenRules
from ..checks import shown
from ..errors import bad_request
from ..http.catalog import ServedModel
from ..text.tokenizer import TextCodec
from .fields import Options


def stop_tokens(options: Options, served: ServedModel, *, whole: bool) -> list[int]:
    """Return the ids that end the sequence. ``whole``: all of it follows a grammar, whose end ends it in any case."""
    ends = [] if options.ignore_eos and not whole else served.stop_tokens
    return [*ends, *(token for token in options.stop_token_ids if token not in ends)]


def stop_strings(options: Options, served: ServedModel) -> tuple[str, ...]:
    """Return the strings that end an answer: the request's, and the checkpoint's unless its ends are ignored.

    A constrained answer ends by its grammar, not by the checkpoint's strings, which may come within it.
    """
    if options.stop and served.codec.missing:  # the answer has no text to search for them
        raise bad_request(served.codec.missing, "stop")
    free = options.ignore_eos or options.constraints or served.codec.missing
    own = () if free else served.generation.stop_strings
    return tuple(dict.fromkeys((*options.stop, *own)))


def sampling_of(options: Options, served: ServedModel) -> SamplingParams:
    """Return the sampling parameters of the first choice; the others differ only in ``choice``."""
    return replace(
        served.defaults,
        **options.sampling,
        logprobs=options.scored,
        prompt_logprobs=max(options.prompt_scored, options.scored if options.echoed else -1),
        rules=rules_of(options, served),
    )


def for_prompt(sampling: SamplingParams, served: ServedModel, options: Options, tokens: int) -> SamplingParams:
    """Return the sampling parameters for a prompt of this length: ``min_length`` of the checkpoint includes the prompt."""
    rules = sampling.rules or TokenRules()
    least = 0 if options.min_tokens is not None else served.generation.min_length - tokens
    if least <= rules.min_tokens:
        return sampling
    return replace(sampling, rules=replace(rules, min_tokens=least, ends=_ends(options, served)))


def rules_of(options: Options, served: ServedModel) -> TokenRules | None:
    """Return the token rules, or None if neither the request nor the checkpoint has any."""
    _check_ids("stop_token_ids", options.stop_token_ids, served)
    _check_ids("allowed_token_ids", options.allowed_token_ids, served)
    _check_ids("logit_bias", (token for token, _ in options.logit_bias), served)
    own = served.generation
    least = own.min_new_tokens if options.min_tokens is None else options.min_tokens
    banned = [ids for word in options.bad_words for ids in bad_word_ids(served.codec, word)]
    rules = TokenRules(
        allowed=list(options.allowed_token_ids),
        banned=banned,
        barred=[*([token] for token in own.suppressed), *map(list, own.banned)],
        phrases=[(list(one.tokens), one.bias) for one in own.biases],
        barred_first=list(own.suppressed_first),
        no_repeat=own.no_repeat_ngram,
        bias=list(options.logit_bias),
        min_tokens=least,
        ends=_ends(options, served) if least else [],
    )
    if rules == TokenRules():
        return None
    single = {ids[0] for ids in banned if len(ids) == 1}
    if rules.allowed and not {*rules.allowed} - {*rules.ends, *single}:
        others = "min_tokens and bad_words" if rules.ends and banned else "min_tokens" if rules.ends else "bad_words"
        raise bad_request(
            f"{others} forbid every token of allowed_token_ids; allow more, or leave one out", "allowed_token_ids"
        )
    return rules


def _ends(options: Options, served: ServedModel) -> list[int]:
    """Return the tokens that are forbidden until an answer has its least length."""
    return sorted(t for t in {*served.stop_tokens, *options.stop_token_ids} if t < served.vocabulary)


def bad_word_ids(codec: TextCodec, word: str) -> list[list[int]]:
    """Return the word as token ids at the start of a text, and within one if that is a token of its own (as in vLLM)."""
    if codec.missing:
        raise bad_request(codec.missing, "bad_words")
    if (special := codec.id_of(word.strip())) in codec.special and special is not None:
        return [[special]]
    plain = codec.encode(word.lstrip(), special=False)
    spaced = codec.encode(" " + word.lstrip(), special=False)
    if not plain:
        raise bad_request(f"the bad word {shown(word)} has no tokens; leave it out", "bad_words")
    return [plain, spaced] if spaced[0] != plain[0] and len(spaced) == len(plain) else [plain]


def _check_ids(name: str, ids: Iterable[int], served: ServedModel) -> None:
    bad = next((token for token in ids if not 0 <= token < served.vocabulary), None)
    if bad is not None:
        message = f"{name} has the token id {shown(bad)}, which is not in the vocabulary; give ids from 0 to "
        raise bad_request(f"{message}{served.vocabulary - 1}", name)

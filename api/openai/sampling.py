"""From a request's options and a checkpoint's defaults to the sampling of each sequence.

Everything that needs the model to be checked is checked here: token ids against the vocabulary, bad words against the
tokenizer. Each refusal is a 400 that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blockwright.api.checks import shown
from blockwright.api.errors import bad_request
from blockwright.api.http.catalog import ServedModel
from blockwright.api.openai.fields import Options
from blockwright.api.text.tokenizer import TextCodec
from blockwright.policies.plan.sampling import SamplingParams, TokenRules


def stop_tokens(options: Options, served: ServedModel) -> list[int]:
    """Ids that end the sequence."""
    ends = [] if options.ignore_eos else served.stop_tokens
    return [*ends, *(token for token in options.stop_token_ids if token not in ends)]


def sampling_of(options: Options, served: ServedModel) -> SamplingParams:
    """The sampling of the first choice; the others differ in ``choice`` alone."""
    if options.stop and served.codec.missing:  # the answer has no text that they could stand in
        raise bad_request(served.codec.missing, "stop")
    return replace(
        served.defaults,
        **options.sampling,
        logprobs=options.scored,
        prompt_logprobs=max(options.prompt_scored, options.scored if options.echoed else -1),
        rules=rules_of(options, served),
    )


def rules_of(options: Options, served: ServedModel) -> TokenRules | None:
    """None for a request without such fields."""
    _check_ids("stop_token_ids", options.stop_token_ids, served)
    if not (options.allowed_token_ids or options.bad_words or options.logit_bias or options.min_tokens):
        return None
    _check_ids("allowed_token_ids", options.allowed_token_ids, served)
    _check_ids("logit_bias", (token for token, _ in options.logit_bias), served)
    banned = [ids for word in options.bad_words for ids in bad_word_ids(served.codec, word)]
    ends = sorted(t for t in {*served.stop_tokens, *options.stop_token_ids} if t < served.vocabulary)
    rules = TokenRules(
        allowed=list(options.allowed_token_ids),
        banned=banned,
        bias=list(options.logit_bias),
        min_tokens=options.min_tokens,
        ends=ends if options.min_tokens else [],
    )
    if rules.allowed and not {*rules.allowed} - {*rules.ends, *(ids[0] for ids in banned if len(ids) == 1)}:
        others = "min_tokens and bad_words" if rules.ends and banned else "min_tokens" if rules.ends else "bad_words"
        raise bad_request(
            f"{others} forbid every token of allowed_token_ids; allow more, or leave one out", "allowed_token_ids"
        )
    return rules


def bad_word_ids(codec: TextCodec, word: str) -> list[list[int]]:
    """The word as token ids at the start of a text, and within one where that is a token of its own (as vLLM has it)."""
    if codec.missing:
        raise bad_request(codec.missing, "bad_words")
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

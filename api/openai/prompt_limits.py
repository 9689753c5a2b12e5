"""Limits of prompts: the length in the model's context, valid tokens, and the number of choices of a request.

Every refusal is a 400 with the numbers and the remedy. Prompts are token ids here; text is not handled.
"""

from __future__ import annotations

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.embedder import Embedder
from ...policies.requests.admission import part
from ..checks import shown
from ..errors import ContextExceeded, bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from .fields import Options


def check_generates(info: ModelInfo, served: ServedModel) -> None:
    """Raise a 400 for an embedder, which generates nothing."""
    if isinstance(served.pooled, Embedder):
        message = f"{info.id} is an embedder and generates no text; send texts to POST /v1/embeddings, or name another model"
        raise bad_request(message, "model", "unsupported_model")


def check_prompt(tokens: list[int], info: ModelInfo, served: ServedModel, options: Options, default: int | None) -> int:
    """Return the number of new tokens that may follow; raise a 400 if that is zero, or fewer than requested.

    ``default``: new tokens if the request sets no limit; None for all that fit. An echo alone (0 tokens requested) needs
    capacity for one: the prompt runs to its end, and the token after it is not shown.
    """
    if not tokens:
        raise bad_request("the prompt has no tokens; give at least one character", "prompt")
    room = info.max_length - len(tokens)
    asked = None if options.limit is None else max(1, options.limit)
    if room < 1 or (asked is not None and asked > room):
        wanted = f"{asked} new tokens" if asked is not None else "at least 1 new token"
        raise ContextExceeded(
            f"the context of {info.id} holds {info.max_length} tokens, but the prompt has {len(tokens)} and {wanted} were "
            f"asked for; shorten the prompt or lower {options.limit_name}",
            limit=options.limit_name,
            prompt=len(tokens),
            new=asked or 1,
            context=info.max_length,
        )
    check_vocabulary(tokens, served, "prompt")
    if asked is not None:
        return asked
    return min(bound for bound in (room, default, _own_limit(served, len(tokens))) if bound is not None)


def check_vocabulary(tokens: list[int], served: ServedModel, name: str) -> None:
    """Raise a 400 for the first token that the model does not have. ``name``: the field with the tokens."""
    if min(tokens) < 0 or max(tokens) >= served.vocabulary:
        bad = next(token for token in tokens if not 0 <= token < served.vocabulary)
        message = f"token id {shown(bad)} is not in the vocabulary; give ids from 0 to {served.vocabulary - 1}"
        raise bad_request(message, name)


def _own_limit(served: ServedModel, prompt: int) -> int | None:
    """Return the checkpoint's limit on new tokens for requests that set none.

    That is ``max_new_tokens``, or the rest of ``max_length``. A prompt that fills ``max_length`` is not limited by it.
    """
    own = served.generation
    left = own.max_new_tokens or (own.max_length - prompt if own.max_length else 0)
    return left if left > 0 else None


def truncated(tokens: list[int], options: Options, info: ModelInfo) -> list[int]:
    """Return the end of the prompt that ``truncate_prompt_tokens`` keeps; raise a 400 if that is empty."""
    if options.truncate_prompt_tokens is None:
        return tokens
    if options.truncate_prompt_tokens == 0:
        message = "truncate_prompt_tokens is 0, which leaves no prompt; give at least 1, or -1 for as many as fit"
        raise bad_request(message, "truncate_prompt_tokens")
    asked = max(1, options.limit or 1)
    keep = options.truncate_prompt_tokens if options.truncate_prompt_tokens > 0 else info.max_length - asked
    if keep < 1:
        message = (
            f"the context of {info.id} holds {info.max_length} tokens and {asked} new ones were asked for, which leaves "
        )
        name = options.limit_name
        raise bad_request(f"{message}no room for a prompt; lower {name}", name, "context_length_exceeded")
    return tokens[max(0, len(tokens) - keep) :]


def check_count(front: Front, prompts: int, n: int) -> None:
    """Raise a 400 for more choices than the waiting queue can ever hold: retrying, as after a 503, would be in vain."""
    limit = part(front.settings.requests.max_waiting, 0, 0, front.settings.network.gateways)
    if prompts * n > limit:
        message = f"{prompts * n} choices are more than a gateway accepts at a time ({limit}, from max_waiting and gateways)"
        raise bad_request(f"{message}; send fewer", "n" if n > 1 else "prompt")

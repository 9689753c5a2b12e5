"""The grammar of a request: its constraint, checked, with the tokens of the model that it chooses from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.checkpoint_files import TOKENIZER, CheckpointFiles
from ...policies.plan.grammar import CALLS, JSON, LARK, Grammar, TokenVocabulary
from ...policies.sweep.compile_queue import OWN
from ..constraints.checker import CheckerFull
from ..constraints.constraint import Constraint
from ..errors import ApiError, bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from ..http.held_tools import HeldTools
from .fields import Options
from .held_calls import free_turn, held_tools, with_arguments, without_strict
from .tools import AUTO
from .turns import AnswerTurn

RETRY_AFTER = 2.0  # seconds: many first tries of grammars


class AskedGrammar(NamedTuple):
    """The grammar of a request's answers; None: they are free. ``ignored``: fields that it does not hold."""

    grammar: Grammar | None
    ignored: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True if the whole answer follows it."""
        return self.grammar is not None and self.grammar.form != CALLS


async def asked_grammar(
    front: Front, info: ModelInfo, served: ServedModel, options: Options, turn: AnswerTurn | None, tenant: str
) -> AskedGrammar:
    """Return the grammar of a request's answers; raise a 400 for one that cannot be held exactly."""
    if turn is not None and turn.holds_calls:
        return await _held_calls(front, info, served, options, turn, tenant)
    return await _whole_grammar(front, info, served, options, turn, tenant)


async def _held_calls(
    front: Front, info: ModelInfo, served: ServedModel, options: Options, turn: AnswerTurn, tenant: str
) -> AskedGrammar:
    """Return the grammar of a turn that is free but for its calls, of tools of which none is strict."""
    codec = served.codec
    unheld = _fields(turn)
    if options.allowed_token_ids:
        return AskedGrammar(None, unheld)  # which might leave no token of a call
    try:
        vocabulary = await _vocabulary(front, info, served, "tools", turn)
    except ApiError as error:
        if error.status != 400:
            raise
        return AskedGrammar(None, unheld)  # a tokenizer whose answers cannot be constrained
    held = await _held(front, served, turn, vocabulary, tenant)
    shown = () if options.skip_special_tokens else (id for id in codec.special if id < served.vocabulary)
    said = {id: text for text, id in turn.special.items()} | {id: codec.said(id) for id in shown}
    found = free_turn(turn.template, turn.reader().standing, held, said) if held.grammar else None
    if found is None:
        return AskedGrammar(None, unheld)
    forced = front.settings.drafting.forced == "on"
    grammar = Grammar(form=CALLS, text=found.text, vocabulary=vocabulary, to_the_end=options.ignore_eos, forced=forced)
    return AskedGrammar(grammar, held.ignored)


async def _held(front: Front, served: ServedModel, turn: AnswerTurn, vocabulary: TokenVocabulary, tenant: str) -> HeldTools:
    ends = frozenset(served.codec.said(token) for token in vocabulary.ends)
    return await held_tools(front, turn, ends, lambda form, text: _fault(front, tenant, form, text, "tools"))


def _fields(turn: AnswerTurn) -> tuple[str, ...]:
    return tuple(tool.field for tool, _ in turn.use.callable)


async def _whole_grammar(
    front: Front, info: ModelInfo, served: ServedModel, options: Options, turn: AnswerTurn | None, tenant: str
) -> AskedGrammar:
    """Return the grammar that whole answers follow, if there is one."""
    constraint = next(iter(options.constraints), None)
    shapes = turn is not None and turn.shapes
    if constraint is None and not shapes:
        return AskedGrammar(None)
    named = constraint.field if constraint is not None else "tools"
    if options.allowed_token_ids:
        message = f"allowed_token_ids and {named} may leave no token; leave one of them out"
        raise bad_request(message, "allowed_token_ids")
    vocabulary = await _vocabulary(front, info, served, named, turn)
    forced = front.settings.drafting.forced == "on"
    common: dict[str, Any] = {"vocabulary": vocabulary, "to_the_end": options.ignore_eos, "forced": forced}
    if constraint is not None:
        await _check(front, tenant, constraint.form, constraint.text, constraint.field)
    if turn is None or not shapes:
        assert constraint is not None
        return AskedGrammar(Grammar(form=constraint.form, text=constraint.text, **common))
    for tool, schema in turn.use.callable:
        await _check(front, tenant, JSON, json.dumps(schema), tool.field)
    if constraint is not None and (text := turn.text_grammar(constraint)):
        await _check(front, tenant, LARK, text, named, " behind thinking, where a text begins with no blank")
    turn, ignored = await _with_arguments(front, served, turn, constraint, vocabulary, tenant)
    await _check(front, tenant, LARK, turn.grammar(constraint, by_name=True), named)
    return AskedGrammar(Grammar(form=LARK, text=turn.grammar(constraint), **common), ignored)


async def _with_arguments(
    front: Front,
    served: ServedModel,
    turn: AnswerTurn,
    constraint: Constraint | None,
    vocabulary: TokenVocabulary,
    tenant: str,
) -> tuple[AnswerTurn, tuple[str, ...]]:
    """Return a turn with the schemas of its tools that are not strict, and their places that it does not hold."""
    free = without_strict(turn)
    if turn.use.choice.mode != AUTO or not free.use.callable:
        return turn, ()
    held = await _held(front, served, free, vocabulary, tenant)
    found = with_arguments(turn, held)
    text = found.grammar(constraint, by_name=True)
    return (turn, _fields(free)) if await _fault(front, tenant, LARK, text, "tools") else (found, held.ignored)


async def _check(front: Front, tenant: str, form: str, text: str, field: str, where: str = "") -> None:
    """Raise a 400 for a grammar that cannot be compiled, a 429 or 503 if too many wait to be tried. ``where`` it stands."""
    if fault := await _fault(front, tenant, form, text, field):
        raise bad_request(f"{field} cannot be held exactly{where}: {fault}", field, "unsupported_constraint")


async def _fault(front: Front, tenant: str, form: str, text: str, field: str) -> str:
    """Return why a grammar cannot be compiled, or nothing. Raise a 429 or 503 if too many wait to be tried."""
    try:
        return await front.grammars.fault(form, text, tenant)
    except CheckerFull as full:
        whose, status = ("of your own ", 429) if full.queue == OWN else ("", 503)
        why = f"{full.waiting} new constraints {whose}wait to be compiled; send {field} again later, or one that is in use"
        raise ApiError(status, why, param=field, code="too_many_constraints", retry_after=RETRY_AFTER) from None


async def _vocabulary(
    front: Front, info: ModelInfo, served: ServedModel, field: str, turn: AnswerTurn | None
) -> TokenVocabulary:
    """Return the tokens of a model. Raise a 400 if they cannot be constrained."""
    codec = served.codec
    if codec.missing:
        raise bad_request(codec.missing, field)
    ends = sorted(token for token in served.stop_tokens if token < served.vocabulary)
    if not ends:
        why = f"{info.id} has no end token, so no constrained answer could end; name its eos_token_id in config.json"
        raise bad_request(why, field)
    file = CheckpointFiles(*map(Path, info.folders)).of_tokenizer().find(TOKENIZER)
    facts = await front.grammars.table(file, served.vocabulary, sorted(codec.special), codec.token_bytes)
    if facts.fault:
        raise ApiError(400, facts.fault, param=field, code="unsupported_constraint")
    hidden = sorted({*facts.hidden, *(turn.special.values() if turn is not None else ())} - {*ends})
    return TokenVocabulary(file=str(file), digest=facts.digest, size=served.vocabulary, ends=ends, hidden=hidden)

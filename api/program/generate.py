"""Offline generation in one call: start a cluster in this program, answer a list of prompts, stop it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, overload

from ...actors.settings.settings import SETTINGS
from ..batches.lines import BatchLine, LineAnswer
from ..batches.local_job import LocalJob
from ..openai.completions import COMPLETIONS
from .client import Prompt, answer_of, as_prompts, asked
from .embedded import ALONE, Cluster
from .exchange_errors import error_of, warn_ignored
from .options import GenerateOptions, check_options
from .progress import Bar
from .results import Answer


@overload
def generate(  # type: ignore[overload-overlap] # a text is a sequence of texts, too: the first wins
    model: str | os.PathLike[str],
    prompts: Prompt,
    *,
    progress: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[GenerateOptions],
) -> Answer: ...


@overload
def generate(
    model: str | os.PathLike[str],
    prompts: Sequence[Prompt],
    *,
    progress: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[GenerateOptions],
) -> list[Answer]: ...


def generate(
    model: str | os.PathLike[str],
    prompts: Prompt | Sequence[Prompt],
    *,
    progress: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[GenerateOptions],
) -> Answer | list[Answer]:
    """Continue prompts with a checkpoint: start a cluster, answer all of them, stop it.

    prompts: one (a text, or token ids) gives one answer, a list gives a list in its order. They run in the order that suits
    the machine, as batches do (docs/offline.md). progress: a bar on standard error; None: shown on a terminal or in a
    notebook. settings: as for ``Cluster``. options: the API's fields by name (max_tokens, temperature, seed, stop, ...).

    Raises RequestError for a prompt that is refused, and the errors of entering a ``Cluster``.
    """
    for name in options:  # checked before a cluster is started
        if name in SETTINGS:
            raise TypeError(f"{name} is a setting of the cluster; give it as settings={{{name!r}: ...}}")
    check_options(options, GenerateOptions)
    asked, single = as_prompts(prompts)
    shown = (sys.stderr.isatty() or "ipykernel" in sys.modules) if progress is None else progress
    cluster = Cluster(model, **{**ALONE, **(settings or {})})
    with Bar(len(asked), shown) as bar, cluster as session:
        bar.begin()
        answers = session.run(generate_all(cluster, asked, bar.done, options))
    return answers[0] if single else answers


async def generate_all(
    cluster: Cluster, prompts: Sequence[Prompt], done: Callable[[Answer], None], options: Mapping[str, Any]
) -> list[Answer]:
    """Return all answers, in the order of the prompts. ``done`` is called with each complete answer.

    ``options``: as for ``Session.generate``. Raise RequestError for the first refused prompt, and cancel the others.
    """
    model, more = options.get("model"), {name: value for name, value in options.items() if name != "model"}
    answers: dict[int, Answer] = {}
    ignored: set[str] = set()

    def line(number: int) -> BatchLine:
        prompt = prompts[number]
        body = asked(model, more, prompt=prompt if isinstance(prompt, str) else list(prompt))
        return BatchLine(str(number), COMPLETIONS, json.loads(json.dumps(body)))

    def keep(number: int, answer: LineAnswer) -> None:
        body = json.loads(answer.body)
        if answer.status != 200:
            raise error_of(answer.status, body)
        if answer.ignored and not ignored.issuperset(answer.ignored):
            ignored.update(answer.ignored)
            warn_ignored(", ".join(answer.ignored))
        found = answers[number] = answer_of(body)
        done(found)

    job = LocalJob(cluster.front, cluster.caller, line, keep)
    await job.check(range(len(prompts)), {}, lambda count: None)
    await job.run({})
    return [answers[number] for number in range(len(prompts))]

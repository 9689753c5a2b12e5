"""An offline job in this program's cluster: many prompts, run in the order that suits the machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..batches.lines import BatchLine, LineAnswer
from ..batches.local_job import LocalJob
from ..openai.completions import COMPLETIONS
from .client import Prompt, answer_of, asked
from .embedded import Cluster
from .exchange_errors import error_of, warn_ignored
from .results import Answer


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

"""Offline generation in one call: start a cluster in this program, answer a list of prompts, stop it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_type_hints, overload

from ...actors.config import Settings
from .client import Prompt, as_prompts
from .embedded import ALONE, Cluster
from .offline import generate_all
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
        if name in get_type_hints(Settings):
            raise TypeError(f"{name} is a setting of the cluster; give it as settings={{{name!r}: ...}}")
    check_options(options, GenerateOptions)
    asked, single = as_prompts(prompts)
    shown = (sys.stderr.isatty() or "ipykernel" in sys.modules) if progress is None else progress
    cluster = Cluster(model, **{**ALONE, **(settings or {})})
    with Bar(len(asked), shown) as bar, cluster as session:
        bar.begin()
        answers = session.run(generate_all(cluster, asked, bar.done, options))
    return answers[0] if single else answers

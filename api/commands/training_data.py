"""Data for the training and the grading of a family: a file of prompts and answers, or the tasks of the demo, as tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import CommandError

if TYPE_CHECKING:
    from ...gpu.weights.checkpoint import Checkpoint
    from ...zoo.family.examples import TrainingExample
    from ..text.tokenizer import TextCodec

DEMO = "demo"  # a value of --data
DATA_HELP = f'file with a JSON object in each line: "prompt" and "answer", or "text"; {DEMO}: the tasks of the demo'
LONGEST = 1 << 30  # bytes of a file
SEED = 22  # of the demo's examples


def read_examples(
    data: str, checkpoint: Checkpoint, *, demo: int = 0, held_out: int = 0, seed: int = SEED
) -> list[TrainingExample]:
    """Return the examples of a file, or of the demo: ``demo`` ones to train on, or ``held_out`` ones of each task.

    ``seed`` chooses the demo's.

    Raises CommandError and CheckpointError.
    """
    from ...gpu.weights.checkpoint_files import CheckpointFiles
    from ..text.tokenizer import TextCodec

    codec = TextCodec.load(CheckpointFiles(checkpoint.path))
    if codec.missing:
        raise CommandError(codec.missing, 2)
    encoder = _Encoder(codec, checkpoint)
    if data == DEMO:
        return [encoder.pair("the demo", prompt, answer) for prompt, answer in _demo(demo, held_out, seed)]
    found = [encoder.of_line(f"{data}, line {number}", values) for number, values in _objects(Path(data))]
    if not found:
        raise CommandError(f"{data} has 0 examples; give one JSON object with prompt and answer in each line", 2)
    return found


def _demo(count: int, held_out: int, seed: int) -> Iterator[tuple[str, str]]:
    from ..demo.tasks import HELD_OUT, examination, training_stream

    examples = examination(seed, held_out, (HELD_OUT,)) if held_out else islice(training_stream(seed), count)
    return ((example.prompt, example.answer) for example in examples)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with the numbers of their lines."""
    from ...gpu.model.fields import parse
    from ...gpu.regular_file import read_plain

    try:
        text = read_plain(path.expanduser(), LONGEST)
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); name a file, or {DEMO}", 2) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text; save it as UTF-8", 2) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = parse(line.encode(), unique=True)
        except ValueError as error:
            raise CommandError(f"{path}, line {number} is not valid JSON ({error}); correct the line", 2) from None
        if not isinstance(values, dict):
            raise CommandError(f"{path}, line {number} is no JSON object; give prompt and answer", 2)
        yield number, values


class _Encoder:
    """Texts as examples for one model."""

    def __init__(self, codec: TextCodec, checkpoint: Checkpoint) -> None:
        self._codec, self._config = codec, checkpoint.config
        self._end = list(checkpoint.generation.eos_token_ids or checkpoint.config.eos_token_ids)[:1]

    def of_line(self, where: str, values: dict[str, Any]) -> TrainingExample:
        names = ("text",) if "text" in values else ("prompt", "answer")
        if unknown := sorted(values.keys() - {*names}):
            raise CommandError(f"{where} has the field {unknown[0]!r} beside {' and '.join(names)}; remove it", 2)
        for name in names:
            if not isinstance(values.get(name), str):
                raise CommandError(f"{where}: {name} is {values.get(name)!r}; give a text", 2)
        return self.pair(where, values.get("prompt"), values[names[-1]])

    def pair(self, where: str, prompt: str | None, answer: str) -> TrainingExample:
        """Return a prompt with its answer and the end token; without a prompt, a text of which all is learned."""
        from ...zoo.family.examples import TrainingExample

        before = () if prompt is None else self._tokens(where, prompt, special=True)
        example = TrainingExample(before, (*self._tokens(where, answer, special=prompt is None), *self._end))
        limit = self._config.max_position
        if len(example) > limit:
            raise CommandError(f"{where} has {len(example)} tokens, more than the {limit} of the model; shorten it", 2)
        if len(example) < 2 or not example.answer:
            raise CommandError(f"{where} has {len(example)} tokens and nothing to learn; give a longer answer", 2)
        return example

    def _tokens(self, where: str, text: str, *, special: bool) -> tuple[int, ...]:
        tokens = self._codec.encode(text, special=special)
        if (highest := max(tokens, default=0)) >= self._config.vocabulary:
            raise CommandError(
                f"{where}: the tokenizer gives token {highest}, the model has {self._config.vocabulary}; "
                "use the tokenizer that belongs to it",
                2,
            )
        return tuple(tokens)

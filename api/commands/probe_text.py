"""The text that two models are compared by, and prompts with known answers, in the tokens of each model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import CommandError
from .training_data import DEMO, LONGEST, SEED, read_examples

if TYPE_CHECKING:
    from ...gpu.weights.checkpoint import Checkpoint
    from ...zoo.equivalence.probe import Probe, Row, TokenTexts
    from ...zoo.family.examples import TrainingExample
    from ..text.tokenizer import TextCodec

PROMPTS = 1200  # that lost answers are counted on
EACH = 100  # prompts of each of the demo's 12 tasks
PROBE_SEEDS = (SEED + 1, SEED + 2)  # of the demo's examples in a probe
STITCH_SEED, STITCH_EXAMPLES = SEED + 3, 2500  # of the demo's examples that stitches are made with
CHARACTERS = 32  # of a text for each token that is needed, at most

Prompts = list["TrainingExample"]


class ComparisonData:
    """The texts of a comparison of two models: a probe for both, and prompts with answers in the tokens of each."""

    def __init__(self, models: Sequence[Checkpoint], names: tuple[str, str]) -> None:
        """Load the tokenizers of two models. Raises CommandError and CheckpointError."""
        from ...gpu.weights.checkpoint_files import CheckpointFiles
        from ...gpu.weights.token_table import token_table
        from ..text.tokenizer import TextCodec

        self._models, self._names = models, names
        self._codecs = [TextCodec.load(CheckpointFiles(one.path)) for one in models]
        for codec in self._codecs:
            if codec.missing:
                raise CommandError(codec.missing, 2)
        tables = [token_table([str(one.path)]) for one in models]
        self._same = tables[0] == tables[1]

    def prompts_and_probe(self, data: str, text: str) -> tuple[tuple[Prompts, Prompts], Probe]:
        """Return the prompts of ``data`` in each model's tokens, and the probe: of the file ``text``, or else of ``data``.

        ``data`` is as for ``read_examples``, or "" for no prompts. Raises CommandError and CheckpointError.
        """
        from ...zoo.equivalence.probe import shared_tokens

        if not data and not text:
            raise CommandError(f"there is no probe text; give --text FILE, or --data FILE with answers, or --data {DEMO}", 2)
        if not self._same:
            shared_tokens(
                *self._token_texts(), self._names
            )  # before a tokenizer that knows nothing of the data is blamed on it
        own, rest = self._examples(0, data) if data else ([], [])
        others, other_rest = (own, rest) if self._same else self._examples(1, data) if data else ([], [])
        if text:
            rows, other_rows = self._rows(Path(text))
        else:
            rows, other_rows = ([(*one.prompt, *one.answer) for one in found] for found in (rest, other_rest))
        return (own, others), self._probe(rows, other_rows, text or data)

    def stitch_rows(self, data: str, text: str) -> tuple[Row, ...]:
        """Return rows for the training of stitches: of the file ``text``, or else of ``data``, as for ``read_examples``.

        Raises CommandError and CheckpointError.
        """
        from ...zoo.equivalence.probe import cut

        if not self._same:
            raise CommandError(
                f"{self._names[0]} and {self._names[1]} have different tokenizers; a stitch takes the states of a token to "
                "the states of the same token: name models with one tokenizer",
                2,
            )
        if not data and not text:
            raise CommandError(f"there is no text to train on; give --text FILE, or --data FILE, or --data {DEMO}", 2)
        if text:
            rows = self._rows(Path(text))[0]
        elif data == DEMO:
            found = read_examples(DEMO, self._models[0], demo=STITCH_EXAMPLES, seed=STITCH_SEED)
            rows = [(*one.prompt, *one.answer) for one in found]
        else:  # the last ones that a comparison would read
            rows = [(*one.prompt, *one.answer) for one in _mixed(read_examples(data, self._models[0]))[::-1]]
        return cut(rows, "the text of the demo" if data == DEMO and not text else text or data, "the training of stitches")

    def _probe(self, rows: Sequence[Row], other_rows: Sequence[Row], where: str) -> Probe:
        from ...zoo.equivalence.probe import cut, paired_probe, same_probe

        kept = cut(rows, "the probe text of the demo" if where == DEMO else where)
        if self._same:
            return same_probe(kept)
        return paired_probe(kept, other_rows[: len(kept)], *self._token_texts(), self._names)

    def _token_texts(self) -> tuple[TokenTexts, TokenTexts]:
        own, other = (_texts(codec, one.config.vocabulary) for codec, one in zip(self._codecs, self._models, strict=True))
        return own, other

    def _examples(self, model: int, data: str) -> tuple[Prompts, Prompts]:
        """Return the prompts with answers and the examples of a probe, in an order that depends on their number alone."""
        checkpoint = self._models[model]
        if data == DEMO:
            found = [one for seed in PROBE_SEEDS for one in read_examples(DEMO, checkpoint, held_out=EACH, seed=seed)]
            return read_examples(DEMO, checkpoint, held_out=EACH), _mixed(found)
        found = _mixed(read_examples(data, checkpoint))
        prompts = [one for one in found if one.prompt][:PROMPTS]
        return prompts, [*found[len(prompts) :], *found[: len(prompts)]]

    def _rows(self, path: Path) -> tuple[list[Row], list[Row]]:
        """Return pieces of a text as rows of both models; each has a full row of the first model's tokens."""
        from ...gpu.regular_file import read_plain
        from ...zoo.equivalence.probe import LENGTH, TOKENS

        try:
            text = read_plain(path.expanduser(), LONGEST)[: TOKENS * CHARACTERS]
        except OSError as error:
            raise CommandError(f"--text {path} cannot be read ({error.strerror}); name a file", 2) from None
        except UnicodeDecodeError:
            raise CommandError(f"--text {path} is not UTF-8 text; save it as UTF-8", 2) from None
        codec = self._codecs[0]
        places = codec.offsets(text, special=False)
        step = LENGTH - len(codec.encode("", special=True))
        starts = places[::step]
        pieces = [text[first:last] for first, last in zip(starts, [*starts[1:], len(text)], strict=False)]
        rows, other_rows = ([tuple(one.encode(piece, special=True)) for piece in pieces] for one in self._codecs)
        return rows, [row[: self._models[1].config.max_position] for row in other_rows]


def _mixed(examples: Prompts) -> Prompts:
    return random.Random(SEED).sample(examples, len(examples))


def _texts(codec: TextCodec, vocabulary: int) -> TokenTexts:
    return {token: (token in codec.special, codec.token_bytes(token)) for token in range(min(codec.size, vocabulary))}

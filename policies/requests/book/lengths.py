"""A gateway's estimates of answer lengths, their accuracy, and the lessons from ended requests for the tagger."""

from __future__ import annotations

from ...prediction.lengths import Features, LengthEstimator, LengthSample, features_of
from .record import RequestRecord
from .values import Generation, LengthFigures

MOST_LESSONS = 1024  # lessons kept until they are taken; further ones are dropped


class Lengths:
    """The length estimates of one gateway.

    ``wanted``: whether estimates are used at all; if not, a request costs one check.
    """

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.estimator: LengthEstimator | None = None  # copy of the tagger's estimator, once there is one
        self.figures = LengthFigures()
        self._lessons: list[LengthSample] = []

    def expect(self, generation: Generation, model: str) -> tuple[Features | None, int]:
        """Return a new request's features and the estimated length of its answer (0: unknown).

        ``model``: the name that the client asked for. It stays the same when the application behind that name is replaced.
        """
        if not self.wanted:
            return None, 0
        sampling, stops = generation.sampling, generation.stop_strings
        features = features_of(
            model,
            generation.prompt,
            generation.max_tokens,
            min_tokens=sampling.rules.min_tokens if sampling.rules is not None else 0,
            endless=not generation.stop_tokens and not stops,
            asked=f"{'sampled' if sampling.temperature else 'greedy'} {len(generation.stop_tokens)} {stops}",
        )
        return features, self.estimator.estimate(features) if self.estimator is not None else 0

    def ended(self, record: RequestRecord, reason: str) -> None:
        """Learn from an ended request. ``reason``: "length" if a limit ended it.

        Nothing is learned from an incomplete answer, or where the client stated the length.
        """
        features = record.features
        expected = record.expected
        length = record.progress.emitted
        if features is None or features.stated or record.state != "finished" or not length:
            return
        if expected:
            self.figures.accuracy.add(expected, length)
        if len(self._lessons) < MOST_LESSONS:
            self._lessons.append(LengthSample(features, length, reason != "length", expected))

    def take(self) -> list[LengthSample]:
        """Return and clear the lessons since the last call."""
        lessons, self._lessons = self._lessons, []
        return lessons

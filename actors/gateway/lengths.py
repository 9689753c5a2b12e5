"""What a gateway expects of its requests' lengths, how right that was, and what is to be learned from those that ended."""

from __future__ import annotations

from ...policies.prediction.lengths import Features, LengthEstimator, Lesson, features_of
from .port import Generation, LengthFigures
from .record import RequestRecord

MOST_LESSONS = 1024  # kept until they are taken; beyond, ends are not told


class Lengths:
    """``wanted``: whether anybody wants to know; otherwise a request costs one look at it."""

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.estimator: LengthEstimator | None = None  # a copy of the tagger's, once there is one
        self.figures = LengthFigures()
        self._lessons: list[Lesson] = []

    def expect(self, generation: Generation, model: str) -> tuple[Features | None, int]:
        """What is known of a request before it starts, and the length of its answer; 0: unknown. ``model``: as it was asked
        for, which stays when what is served under that name is replaced."""
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
        """A request has ended. Nothing is learned where it was not complete, or where its length was stated; ``reason``:
        "length" where a limit ended it."""
        features, expected, length = record.features, record.expected, record.emitted
        if features is None or features.stated or record.state != "finished" or not length:
            return
        if expected:
            self.figures.accuracy.add(expected, length)
        if len(self._lessons) < MOST_LESSONS:
            self._lessons.append(Lesson(features, length, reason != "length", expected))

    def take(self) -> list[Lesson]:
        """Those since the last call."""
        lessons, self._lessons = self._lessons, []
        return lessons

"""The tagger: the one owner of what is learned of answer lengths; lives on the head.

Gateways estimate with a copy (``actors/gateway/tagging.py``), so that no request waits for this actor. About once a second
each brings what has ended there and takes the model that came of it. What is learned is kept in a folder if one is set.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...policies.prediction.length_history import LengthHistory
from ...policies.prediction.lengths import Lesson
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.clock import Timer
from ..config import TRAINED, Settings, SettingsError
from .model_file import TaggerFile, TaggerFileError, read_tagger, write_tagger

log = logging.getLogger(__name__)
SAVE_SECONDS = 60.0  # between two looks whether there is something new to keep
KEPT = "tagger.json"


@dataclass(frozen=True, slots=True)
class TaggerModel:
    """What a gateway estimates with. ``version``: of this life of the tagger."""

    version: str
    estimator: dict[str, Any]  # a snapshot


def first_tagger(settings: Settings) -> TaggerFile:
    """What the setting names, before it has learned anything here. Raises SettingsError."""
    if not settings.tagger.startswith(TRAINED):
        return TaggerFile(LengthHistory(), settings.tagger)
    try:
        return read_tagger(Path(settings.tagger.removeprefix(TRAINED)).expanduser())
    except TaggerFileError as error:
        raise SettingsError(f"tagger: {error}") from None


class Tagger(Actor):
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept = Path(settings.tagger_folder).expanduser() / KEPT if settings.tagger_folder else None
        self._learned = self._saved = 0  # lessons of this life
        self._model: TaggerModel | None = None  # of all lessons so far, once somebody has asked
        self._timer: Timer | None = None

    async def on_start(self) -> None:
        self._file = await asyncio.to_thread(self._opened)
        self._look()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.save()

    @endpoint
    async def share(self, lessons: list[Lesson], known: str) -> TaggerModel | None:
        """Learn, and answer with the model unless it is the one that the caller knows by its version."""
        for lesson in lessons:
            self._file.estimator.learn(lesson)
        if lessons or self._model is None:
            self._learned += len(lessons)
            self._model = TaggerModel(f"{self.ref} {self._learned}", self._file.estimator.snapshot())
        return None if known == self._model.version else self._model

    @endpoint
    async def save(self) -> None:
        """Keep what was learned, where that is to be kept."""
        if self._kept is None or self._saved == self._learned:
            return
        try:
            await asyncio.to_thread(write_tagger, self._kept, self._file)
            self._saved = self._learned
        except OSError as error:
            log.warning("what the tagger has learned cannot be saved: %s", error)

    def _opened(self) -> TaggerFile:
        """What was kept, or what the setting names. An estimator is no reason for a server to end."""
        try:
            first = first_tagger(self._settings)
        except SettingsError as error:  # it was there when the server started
            log.warning("the tagger begins with nothing: %s", error)
            first = TaggerFile(LengthHistory(), "history")
        if self._kept is not None and self._kept.exists():
            try:
                kept = read_tagger(self._kept)
            except TaggerFileError as error:
                log.warning("the tagger starts from nothing, because its file cannot be read: %s", error)
            else:
                return kept if kept.origin == first.origin else first
        return first

    def _look(self) -> None:
        self._timer = self.node.clock.call_at(self.node.clock.now() + SAVE_SECONDS, self._look)
        self.ref.save.cast()

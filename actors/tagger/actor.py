"""Tagger actor: learns answer lengths for the whole cluster, from one place on the head.

Gateways estimate with a copy of its model (``actors/gateway/tagging.py``), so that no request waits for this actor. About
once a second each gateway sends the requests that have ended there, and gets the updated model. The model is saved in a
folder if one is set.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...policies.prediction.length_history import LengthHistory
from ...policies.prediction.lengths import LengthSample
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.clock import Timer
from ..settings.errors import SettingsError
from ..settings.tagging import TRAINED, TaggerSettings
from .model_file import TaggerFile, TaggerFileError, read_tagger, write_tagger

log = logging.getLogger(__name__)
SAVE_SECONDS = 60.0  # between two checks for something new to save
KEPT = "tagger.json"


@dataclass(frozen=True, slots=True)
class TaggerModel:
    """The model that a gateway estimates with. ``version`` is unique within this life of the tagger."""

    version: str
    estimator: dict[str, Any]  # a snapshot


def first_tagger(settings: TaggerSettings) -> TaggerFile:
    """Return the estimator that the setting names, before it has learned anything here. Raises SettingsError."""
    if not settings.tagger.startswith(TRAINED):
        return TaggerFile(LengthHistory(), settings.tagger)
    try:
        return read_tagger(Path(settings.tagger.removeprefix(TRAINED)).expanduser())
    except TaggerFileError as error:
        raise SettingsError(f"tagger: {error}") from None


class Tagger(Actor):
    """Tagger actor (see the module)."""

    def __init__(self, settings: TaggerSettings) -> None:
        self._settings = settings
        self._kept = Path(settings.tagger_folder).expanduser() / KEPT if settings.tagger_folder else None
        self._learned = self._saved = 0  # number of lessons in this life
        self._model: TaggerModel | None = None  # learned from all lessons so far; None until a gateway has asked
        self._timer: Timer | None = None

    async def on_start(self) -> None:
        self._file = await asyncio.to_thread(self._opened)
        self._look()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.save()

    @endpoint
    async def share(self, lessons: list[LengthSample], known: str) -> TaggerModel | None:
        """Learn from the lessons. Return the model, or None if its version is ``known`` to the caller already."""
        for lesson in lessons:
            self._file.estimator.learn(lesson)
        if lessons or self._model is None:
            self._learned += len(lessons)
            self._model = TaggerModel(f"{self.ref} {self._learned}", self._file.estimator.snapshot())
        return None if known == self._model.version else self._model

    @endpoint
    async def save(self) -> None:
        """Save the model if a folder is set and there is something new."""
        if self._kept is None or self._saved == self._learned:
            return
        try:
            await asyncio.to_thread(write_tagger, self._kept, self._file)
            self._saved = self._learned
        except OSError as error:
            log.warning("what the tagger has learned cannot be saved: %s", error)

    def _opened(self) -> TaggerFile:
        """Return the saved estimator, or the one that the setting names.

        Faults are only logged: a missing estimator is no reason for a server to end.
        """
        try:
            first = first_tagger(self._settings)
        except SettingsError as error:  # the file was readable when the server started
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

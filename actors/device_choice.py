"""Choice of the device, once when a cluster starts: the CPU, a card, or a refusal that says what stands in the way.

``auto`` takes the first card that works, else the CPU, and says why. Only asks; opens no card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..gpu.cuda.footprint import CONTEXT
from ..gpu.cuda.nvml import Card
from ..gpu.cuda.probe import HostParts, choose_card, look_at_host, read_cards
from ..gpu.errors import BackendError
from ..policies.binary_size import binary_size
from .resources import free_memory
from .settings.errors import SettingsError
from .settings.settings import Settings
from .sizing import worker_names

LookAtCards = Callable[[], tuple[Sequence[Card], HostParts]]
HERE = "here"
TOO_MANY = "workers is {}, but {} has {} free, and each takes {} for torch and its context alone; start fewer, or end others"


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The settings with the device by its full name, and the bytes that its workers share, which are ``where``.

    ``notice`` is for the person who started it.
    """

    settings: Settings
    free_memory: int
    where: str = HERE
    notice: str = ""

    @property
    def room(self) -> dict[str, Any]:
        """The memory, as ``worker_configs`` takes it."""
        return {"free_memory": self.free_memory, "where": self.where}


def look_at_cards() -> tuple[Sequence[Card], HostParts]:
    """Look at this machine's cards and at the host's parts. Raises BackendError without a driver or a card."""
    return read_cards(), look_at_host()


def choose_device(settings: Settings, look: LookAtCards = look_at_cards) -> ChosenDevice:
    """Choose the device that the settings ask for. Raises SettingsError, with the remedy, if it does not work here."""
    asked = settings.worker.device
    if not settings.worker.may_be_card:
        return ChosenDevice(settings, free_memory())
    try:
        cards, host = look()
        chosen = choose_card(settings.worker.card, cards, host)
        card, why = chosen.card, chosen.why
    except BackendError as error:
        card, why = None, str(error)
    if card is not None:
        return _on_card(settings, card)
    if asked != "auto":
        raise SettingsError(f"device is {asked!r}, but {why}")
    if settings.worker.bits != "invariant":
        raise SettingsError(f"bits is {settings.worker.bits!r}, which is of a card, and device auto found none: {why}")
    notice = f"device auto computes on the CPU: {why}"
    return ChosenDevice(settings.changed(device="cpu"), free_memory(), notice=notice)


def _on_card(settings: Settings, card: Card) -> ChosenDevice:
    workers = len(worker_names(settings))
    beside = workers * CONTEXT
    if card.free <= beside:
        raise SettingsError(TOO_MANY.format(workers, card.label, binary_size(card.free), binary_size(CONTEXT)))
    where, device = f"for them on {card.label}", f"cuda:{card.number}"
    return ChosenDevice(settings.changed(device=device), card.free - beside, where, f"the workers compute on {card.label}")

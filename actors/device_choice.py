"""Readings of a machine for its workers: the device, the memory there, and cores.

Asked by each worker where it runs. ``auto`` takes the first card that works, else the CPU, and says why; a device that does
not work here is refused with what stands in the way. Only asks; opens no card.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..gpu.cuda.footprint import CONTEXT
from ..gpu.cuda.nvml import ALONE, Card
from ..gpu.cuda.probe import HostParts, choose_card, look_at_host, read_cards
from ..gpu.errors import BackendError
from ..policies.binary_size import binary_size
from ..policies.cluster.worker_size import WorkerReading
from ..transport.device_memory import this_host
from .resources import address_space, cores, free_memory
from .settings.errors import SettingsError
from .settings.workers import WorkerSettings

LookAtCards = Callable[[], tuple[Sequence[Card], HostParts]]
HERE = "here"
TOO_MANY = "workers is {}, but {} has {} free, and each takes {} for torch and its context alone; start fewer, or end others"

ONE_ONLY = "workers is {}, but {} takes one process (compute mode exclusive); start 1, or change it (nvidia-smi -i {} -c 0)"


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The device by its full name, and the bytes that its workers share; ``where`` says whose they are.

    ``notice`` is for the person who started the cluster.
    """

    device: str
    free_memory: int
    where: str = ""
    notice: str = ""


def look_at_cards() -> tuple[Sequence[Card], HostParts]:
    """Look at this machine's cards and at the host's parts. Raises BackendError without a driver or a card."""
    return read_cards(), look_at_host()


def choose_device(worker: WorkerSettings, sharing: int, look: LookAtCards = look_at_cards) -> ChosenDevice:
    """Choose the device that the settings ask for, for ``sharing`` workers.

    Raises SettingsError, with the remedy, if it does not work here.
    """
    asked = worker.device
    if not worker.may_be_card:
        return ChosenDevice(asked, free_memory())
    try:
        cards, host = look()
        chosen = choose_card(worker.card, cards, host)
        card, why = chosen.card, chosen.why
    except BackendError as error:
        card, why = None, str(error)
    if card is not None:
        try:
            return _on_card(card, sharing)
        except SettingsError as error:
            if asked != "auto":
                raise
            why = str(error)
    if asked != "auto":
        raise SettingsError(f"device is {asked!r}, but {why}")
    return _on_cpu(worker, why)


def _on_cpu(worker: WorkerSettings, why: str) -> ChosenDevice:
    """Return the CPU for device auto; ``why``: the reason against a card."""
    if worker.bits != "invariant":
        raise SettingsError(f"bits is {worker.bits!r}, which is of a card, and device auto found none: {why}")
    return ChosenDevice("cpu", free_memory(), notice=f"device auto computes on the CPU: {why}")


def _on_card(card: Card, sharing: int) -> ChosenDevice:
    if card.mode == ALONE and sharing > 1:
        raise SettingsError(ONE_ONLY.format(sharing, card.label, card.number))
    beside = sharing * CONTEXT
    if card.free <= beside:
        raise SettingsError(TOO_MANY.format(sharing, card.label, binary_size(card.free), binary_size(CONTEXT)))
    where, device = f"for them on {card.label}", f"cuda:{card.number}"
    return ChosenDevice(device, card.free - beside, where, f"the workers compute on {card.label}")


def this_machine() -> str:
    """Return what tells this machine from all others; a container is a machine of its own."""
    return f"{socket.gethostname()} {this_host()}"


def read_machine(worker: WorkerSettings, sharing: int, *, here: bool = False, unusable: str = "") -> WorkerReading:
    """Return what this machine has for ``sharing`` workers, without speeds. Raises SettingsError.

    ``here``: the sentence of a refusal need not name the machine. ``unusable``: the reason why torch cannot use the chosen
    card, so that device auto takes the CPU.
    """
    chosen, host = _on_cpu(worker, unusable) if unusable else choose_device(worker, sharing), socket.gethostname()
    place = HERE if here else f"on {host}"
    where = f"{chosen.where}{'' if here else f' of {host}'}" if chosen.where else place
    return WorkerReading(
        machine=this_machine(),
        host=host,
        device=chosen.device,
        cores=cores(),
        free_memory=chosen.free_memory,
        where=where,
        address_space=address_space(),
        notice=chosen.notice,
    )

"""Probe of a card before anything uses it: whether a worker can compute there, and in one sentence what stands in the way.

Asks NVML and looks at the host's files, and makes no CUDA context, so that the process that forks the workers stays
without one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...policies.binary_size import binary_size
from ..errors import BackendError
from .footprint import CONTEXT
from .nvml import ALONE, PROHIBITED, Card, Nvml

LEAST = CONTEXT + (1 << 30)  # bytes that are free on a card that is worth a worker
CAPABILITY = (8, 0)  # least
PACKAGES = {"triton": "triton", "cuda.bindings": "cuda-bindings", "cupy": "cupy"}  # module -> name of the package
INSTALL = "run: pip install 'blockwright[gpu]'"
CPU_BUILD = "torch is a build without CUDA; install one with it (pip install --force-reinstall torch)"


@dataclass(frozen=True, slots=True)
class HostParts:
    """Parts of a host that a card's work needs beside the driver."""

    cuda: bool  # torch is a build for CUDA
    missing: tuple[str, ...]  # packages
    compiler: str  # path of the C compiler that builds the kernels' launchers; "" if there is none
    headers: str  # folder of Python.h; "" if it is not there
    visible: str = ""  # CUDA_VISIBLE_DEVICES, by which CUDA leaves out cards and numbers the others

    def obstacle(self) -> str:
        """Return what stands in the way of any card here, with the remedy; "" if nothing does."""
        if not self.cuda:
            return CPU_BUILD
        if self.missing:
            many = len(self.missing) > 1
            return f"{' and '.join(self.missing)} {'are' if many else 'is'} not installed; {INSTALL}"
        if not self.compiler:
            return "there is no C compiler for the kernels' launchers; install gcc (apt install gcc)"
        if not self.headers:
            return "Python.h is missing, which the kernels' launchers need; install it (apt install python3-dev)"
        return ""

    def hides(self, card: Card) -> str:
        """Return why CUDA does not know a card by its number, with the remedy; "" if it does."""
        if not self.visible or self.visible.split(",")[card.number : card.number + 1] == [str(card.number)]:
            return ""
        return (
            f"CUDA_VISIBLE_DEVICES is {self.visible!r}, by which CUDA does not know {card.label} by this number; unset it, "
            "and choose the card by device"
        )


@dataclass(frozen=True, slots=True)
class ChosenCard:
    """The answer of the probe: a card, or why there is none."""

    card: Card | None
    why: str = ""


def look_at_host() -> HostParts:
    """Look for the parts, without importing them: torch and Triton are large, and cupy looks for a driver."""
    missing = tuple(package for module, package in PACKAGES.items() if not _is_there(module))
    asked = (os.environ.get("CC", ""), "gcc", "clang")
    compiler = next((found for name in asked if name and (found := shutil.which(name))), "")
    folder = sysconfig.get_path("include")
    headers = folder if Path(folder, "Python.h").exists() else ""
    return HostParts(_torch_has_cuda(), missing, compiler, headers, os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def read_cards(nvml: Nvml | None = None) -> list[Card]:
    """Read the cards once. Raises BackendError, with the remedy, without a driver or without a card."""
    opened = nvml or Nvml()
    try:
        cards = opened.cards()
    finally:
        opened.close()
    if not cards:
        raise BackendError("the NVIDIA driver finds no card here; start the container with one (docker run --gpus all)")
    return cards


def choose_card(number: int | None, cards: Sequence[Card], host: HostParts) -> ChosenCard:
    """Choose card ``number``, or for None the first that works."""
    if number is not None and not 0 <= number < len(cards):
        names = ", ".join(f"{card.number} ({card.name})" for card in cards)
        return ChosenCard(None, f"there is no card {number} here; choose one of {names}")
    asked = cards if number is None else [cards[number]]
    found = {card.number: obstacle(card) or host.hides(card) or host.obstacle() for card in asked}
    works = next((card for card in asked if not found[card.number]), None)
    return ChosenCard(works, "" if works else next(iter(found.values())))


def obstacle(card: Card) -> str:
    """Return what stands in the way of a worker on a card, with the remedy; "" if nothing does."""
    label, (major, minor) = card.label, card.capability
    if card.mig:
        return f"{label} is divided by MIG, which is not supported; choose another card, or have MIG turned off"
    if card.capability < CAPABILITY:
        return f"{label} has compute capability {major}.{minor}, and 8.0 is the least; choose a newer card, or device cpu"
    if card.mode == PROHIBITED:
        return f"{label} is closed to computing (compute mode prohibited); choose another, or change its mode"
    if card.total < LEAST:
        size = binary_size(card.total)
        return f"{label} has {size}, and at least {binary_size(LEAST)} are needed; choose a larger card, or device cpu"
    if card.free < LEAST or (card.mode == ALONE and card.processes):
        return (
            f"{label} is in use: {binary_size(card.free)} of {binary_size(card.total)} are free{_users(card)}; end these, "
            "or choose another card"
        )
    return ""


def _users(card: Card) -> str:
    """Return the processes on a card, those with most memory first."""
    sizes = sorted(card.processes, key=lambda one: -(one.nbytes or 0))
    shown = [f"{one.pid}" + (f" ({binary_size(one.nbytes)})" if one.nbytes else "") for one in sizes[:4]]
    more = f" and {len(sizes) - 4} more" if len(sizes) > 4 else ""
    return f", process{'es' * (len(sizes) > 1)} {', '.join(shown)}{more}" if shown else ", other programs have the rest"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the package above it is missing
        return False


def _torch_has_cuda() -> bool:
    """Tell whether torch is a build for CUDA, from the file that says so."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = Path(found.origin).with_name("version.py").read_text()
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None

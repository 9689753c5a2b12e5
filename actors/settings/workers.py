"""The settings of worker processes: how many there are, and what they compute with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from .errors import SettingsError
from .models import ModelSettings
from .part import AT_LEAST_ONE, COUNT, AllowedTexts, AtMost, Bounds, Counts, SettingsPart

MOST_WORKERS = 4096
MIRROR = "cuda-mirror"
FRAGMENTATION = "fragmentation"
DEVICE = re.compile(rf"cpu|auto|cuda(:\d{{1,3}})?|{MIRROR}")
MOST_THREADS = 256  # per worker: the kernels' limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(SettingsPart):
    """The workers, their device, and the pipelines that they form."""

    workers: Annotated[int, "worker processes", AT_LEAST_ONE, AtMost(4096)] = 1
    threads: Annotated[
        int,
        "kernel threads per worker; 0: cores (of the container) divided by workers, at least 1",
        COUNT,
        AtMost(MOST_THREADS),
    ] = 0
    device: Annotated[
        str,
        "device on which the workers compute: cpu, cuda (or cuda:1, a card by its number), auto: a card if one works; "
        "cuda-mirror, a twin of the CUDA back end without a card, is for tests",
    ] = "cpu"
    dtype: Annotated[
        str,
        "auto (as stored; float16, or checkpoints of several types: float32), float32 or bfloat16",
        AllowedTexts("auto", "float32", "bfloat16"),
    ] = "auto"
    backend: Annotated[
        str,
        "native (C kernels), torch (the reference) or auto: native if its library loads",
        AllowedTexts("auto", "native", "torch"),
    ] = "auto"
    instruction_set: Annotated[
        str,
        "limit for the native kernels: amx, avx512_bf16, avx512, avx2 or generic; empty: the best the processor has",
        AllowedTexts("", "amx", "avx512_bf16", "avx512", "avx2", "generic"),
    ] = ""
    bits: Annotated[
        str,
        "on a card: invariant (our kernels; results do not depend on the batch) or fast (products by cuBLAS; they may)",
        AllowedTexts("invariant", "fast"),
    ] = "invariant"
    pipeline: Annotated[int, "pipeline stages: workers each model is spread over; must divide workers", AT_LEAST_ONE] = 1
    pipelines: Annotated[Counts, "application: its own number of pipeline stages"] = field(default_factory=dict)
    placement: Annotated[
        str,
        "which models go where, if not all fit everywhere: locality (what shares parameters lies together, and routes "
        "follow the traffic) or fragmentation (as little memory as possible is left over)",
        AllowedTexts("locality", FRAGMENTATION),
    ] = "locality"
    traffic_window: Annotated[
        float,
        "with placement=locality, seconds of traffic after which models that are spread over workers for lack of memory may "
        "be placed anew, so that less crosses; 0: never",
        Bounds("0 or a positive number of seconds", 0),
    ] = 60.0
    profile: Annotated[str, "device profile (a JSON file from blockwright profile) to compare steps with"] = ""
    pace: Annotated[str, "simulate slower hardware: delays per step, from a JSON file of seconds"] = ""

    @property
    def may_be_card(self) -> bool:
        """True if the device is a card, or will be one if it works."""
        return self.device not in ("cpu", MIRROR)

    @property
    def card(self) -> int | None:
        """The number of the card; None for the first that works."""
        _, _, number = self.device.partition(":")
        return None if self.device == "auto" else int(number or 0)

    def stages(self, application: str, family: str = "") -> int:
        """Return the pipeline stages of an application; a tier without a number of its own has its family's."""
        return self.pipelines.get(application, self.pipelines.get(family, self.pipeline))

    def check_together(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise SettingsError(f"device is {self.device!r}; choose cpu, cuda, cuda:1 (a card by its number) or auto")
        for setting in ("backend", "instruction_set"):
            value = getattr(self, setting)
            if self.device not in ("cpu", "auto") and value not in ("", "auto"):
                why = f"but {setting} {value!r} is of the CPU; leave it out, or choose device cpu"
                raise SettingsError(f"device is {self.device!r}, {why}")
        if self.device == "cpu" and self.bits != "invariant":
            raise SettingsError(
                f"bits is {self.bits!r}, which is of a card, but device is 'cpu'; leave it out, or choose a card"
            )
        for label, span in self._spans.items():
            if not 1 <= span <= self.workers or self.workers % span:
                raise SettingsError(f"{label} is {span} with {self.workers} workers; give a divisor of workers")

    def check_names(self, models: ModelSettings) -> None:
        """Refuse pipelines of applications that there are not."""
        for name in self.pipelines:
            if not models.may_serve(name):
                there = ", ".join(models.applications)
                raise SettingsError(f"pipelines.{name} names no application; there are: {there}")

    def check_single(self, setting: str, does: str) -> None:
        """Refuse pipelines beside a setting that works on single workers."""
        for label, span in self._spans.items():
            if span > 1:
                off = "local" if setting == "launcher" else "off"
                raise SettingsError(f"{label} is {span}, but {setting} {does}; give 1, or {setting}={off}")

    @property
    def _spans(self) -> Counts:
        """Return the pipeline stages, by the name of the setting that gives them."""
        return {"pipeline": self.pipeline, **{f"pipelines.{name}": span for name, span in self.pipelines.items()}}

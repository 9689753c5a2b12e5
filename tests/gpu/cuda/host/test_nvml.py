"""Readings of cards, from a module with the functions of ``pynvml``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blockwright.gpu.cuda import nvml
from blockwright.gpu.cuda.nvml import Card, CardProcess, Nvml
from blockwright.gpu.errors import BackendError

from ..fake_nvml import GIB, FakeNvml, card


def test_a_card_is_read_in_bytes_watts_and_shares() -> None:
    busy = card(
        free=30 * GIB, processes=[(4711, 49 * GIB), (12, None)], use=83, power=654_321, clock=1410, reasons=0x4 | 0x20 | 0x1,
        errors=2,
    )  # fmt: skip
    assert Nvml(FakeNvml(card(), busy)).cards()[1] == Card(
        number=1, name="NVIDIA H100", driver="570.86.15", capability=(9, 0), total=80 * GIB, free=30 * GIB,
        processes=(CardProcess(4711, 49 * GIB), CardProcess(12, None)), use=0.83, power=654.321, power_limit=700.0,
        clock=1410, clock_limit=1980, throttled=("power limit", "heat"), ecc=True, errors=2,
    )  # fmt: skip


def test_what_a_card_does_not_report_is_none() -> None:
    names = ("use", "power", "power_limit", "clock", "clock_limit", "ecc", "errors")
    (plain,) = Nvml(FakeNvml(card(**dict.fromkeys((*names, "mig", "reasons", "processes", "mode"))))).cards()
    assert {getattr(plain, name) for name in names} == {None}
    assert (plain.mig, plain.throttled, plain.processes, plain.mode) == (False, (), (), 0)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (FakeNvml(driver=""), "there is no NVIDIA driver here .NVML Shared Library Not Found.; install it, or"),
        (FakeNvml(card(), lost=True), "the NVIDIA driver does not answer .GPU is lost.; see nvidia-smi"),
    ],
)
def test_a_driver_that_is_not_there_or_does_not_answer_is_said(module: FakeNvml, words: str) -> None:
    with pytest.raises(BackendError, match=words):
        Nvml(module).cards()


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    driver = tmp_path / "nvidiactl"
    monkeypatch.setattr(nvml, "TRACES", (driver,))
    with pytest.raises(BackendError, match=r"^there is no NVIDIA driver here \(no /dev/nvidiactl\); install it, or"):
        Nvml()  # the extra alone would not help
    driver.touch()
    with pytest.raises(BackendError, match=r"nvidia-ml-py is not installed; run: pip install 'blockwright\[gpu\]'"):
        Nvml()

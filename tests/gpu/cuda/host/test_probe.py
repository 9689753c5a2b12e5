"""What stands in the way of a card, each in one sentence with a remedy, and which card is chosen."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.cuda import probe
from blockwright.gpu.cuda.nvml import Nvml
from blockwright.gpu.cuda.probe import LEAST, HostParts, choose_card, look_at_host, read_cards
from blockwright.gpu.errors import BackendError
from blockwright.tests.claims import claim

from ..fake_nvml import GIB, FakeNvml, card

WHOLE = HostParts(cuda=True, missing=(), compiler="/usr/bin/gcc", headers="/usr/include/python3.12")


def chosen(number: int | None, *cards: dict[str, Any], host: HostParts = WHOLE) -> tuple[int | None, str]:
    found = choose_card(number, read_cards(Nvml(FakeNvml(*cards))), host)
    return (found.card.number if found.card else None), found.why


@claim("A card that cannot be used is refused in one sentence with the remedy", of="numerics")
@pytest.mark.parametrize(
    ("number", "cards", "host", "says"),
    [
        (1, [card()], WHOLE, "there is no card 1 here; choose one of 0 (NVIDIA H100)"),
        (
            0,
            [card(mig=[1, 1])],
            WHOLE,
            "card 0 (NVIDIA H100) is divided by MIG, which is not supported; choose another card, or have MIG turned off",
        ),
        (
            0,
            [card(name="Tesla T4", capability=(7, 5))],
            WHOLE,
            "card 0 (Tesla T4) has compute capability 7.5, and 8.0 is the least; choose a newer card, or device cpu",
        ),
        (
            0,
            [card(mode=2)],
            WHOLE,
            "card 0 (NVIDIA H100) is closed to computing (compute mode prohibited); choose another, or change its mode",
        ),
        (
            0,
            [card(total=GIB, free=GIB)],
            WHOLE,
            "card 0 (NVIDIA H100) has 1.0 GiB, and at least 1.6 GiB are needed; choose a larger card, or device cpu",
        ),
        (
            0,
            [card(free=LEAST - 1, processes=[(12, GIB), (4711, 60 * GIB), (13, None)])],
            WHOLE,
            "card 0 (NVIDIA H100) is in use: 1.6 GiB of 80.0 GiB are free, processes 4711 (60.0 GiB), 12 (1.0 GiB), 13; "
            "end these, or choose another card",
        ),
        (
            0,
            [card(free=0)],
            WHOLE,
            "card 0 (NVIDIA H100) is in use: 0 B of 80.0 GiB are free, other programs have the rest; end these, or "
            "choose another card",
        ),
        (0, [card()], replace(WHOLE, cuda=False), probe.CPU_BUILD),
        (
            0,
            [card()],
            replace(WHOLE, missing=("triton",)),
            "triton is not installed; run: pip install 'blockwright[gpu]'",
        ),
        (
            0,
            [card()],
            replace(WHOLE, missing=("triton", "cupy")),
            "triton and cupy are not installed; run: pip install 'blockwright[gpu]'",
        ),
        (
            0,
            [card()],
            replace(WHOLE, compiler=""),
            "there is no C compiler for the kernels' launchers; install gcc (apt install gcc)",
        ),
        (
            0,
            [card()],
            replace(WHOLE, headers=""),
            "Python.h is missing, which the kernels' launchers need; install it (apt install python3-dev)",
        ),
    ],
)
def test_what_stands_in_the_way(number: int, cards: list[dict[str, Any]], host: HostParts, says: str) -> None:
    assert chosen(number, *cards, host=host) == (None, says)


def test_a_card_that_cuda_numbers_otherwise_is_refused_and_auto_takes_one_that_it_does_not() -> None:
    cards = [card(), card()]
    assert chosen(1, *cards, host=replace(WHOLE, visible="0,1")) == (1, "")
    assert chosen(1, *cards, host=replace(WHOLE, visible="1")) == (
        None,
        "CUDA_VISIBLE_DEVICES is '1', by which CUDA does not know card 1 (NVIDIA H100) by this number; unset it, and "
        "choose the card by device",
    )
    assert chosen(None, card(mig=[1, 1]), *cards, host=replace(WHOLE, visible="2,1"))[0] == 1


def test_a_card_in_exclusive_mode_is_taken_only_while_it_is_idle() -> None:
    assert chosen(0, card(mode=3)) == (0, "")
    assert "is in use" in chosen(0, card(mode=3, processes=[(12, GIB)]))[1]


def test_without_a_number_the_first_card_that_works_is_taken() -> None:
    old, full = card(capability=(7, 0)), card(free=0)
    idle = card()
    assert chosen(None, old, full, idle, idle) == (2, "")
    assert chosen(None, full, old)[1].startswith("card 0 (NVIDIA H100) is in use"), "of several, the first is explained"


def test_cards_are_read_once_and_nothing_stays_open() -> None:
    module = FakeNvml(card(), card())
    assert [one.number for one in read_cards(Nvml(module))] == [0, 1]
    assert module.opened == 0
    with pytest.raises(BackendError, match="finds no card here; start the container with one"):
        read_cards(Nvml(FakeNvml()))


def test_the_host_is_looked_at_without_an_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not look_at_host().cuda, "the tests have torch's build without CUDA"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(probe, "PACKAGES", {"torch": "torch", "no.such": "such", "nothing_of_that_name": "nothing"})
    found = look_at_host()
    assert found.visible == "3"
    assert (found.missing, found.compiler, found.headers) == (("such", "nothing"), "", "")
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").touch(mode=0o755)
    assert (look_at_host().compiler, look_at_host().headers) == (str(tmp_path / "gcc"), str(tmp_path))


def test_the_build_of_torch_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin = tmp_path / "__init__.py"
    monkeypatch.setattr(probe.importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(origin)}))
    for line, has in (
        ("cuda: Optional[str] = '13.0'", True),
        ("cuda = '12.8'", True),
        ("cuda: Optional[str] = None", False),
    ):
        (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\nhip: Optional[str] = '6'\n")
        assert look_at_host().cuda is has

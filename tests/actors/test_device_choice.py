"""Which device a cluster computes on, from the settings and from what a machine has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors import device_choice
from blockwright.actors.device_choice import ChosenDevice, LookAtCards, choose_device, read_machine, this_machine
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import size_rules
from blockwright.gpu.cuda.footprint import CONTEXT
from blockwright.gpu.cuda.nvml import Card
from blockwright.gpu.cuda.probe import HostParts
from blockwright.gpu.errors import BackendError
from blockwright.policies.binary_size import binary_size
from blockwright.policies.cluster.worker_size import SizeRefused, SizeRules, WorkerReading, card_memory, size_of
from blockwright.tests.actors.test_sizing import model
from blockwright.tests.claims import claim

GIB = 1 << 30
WHOLE = HostParts(cuda=True, missing=(), compiler="/usr/bin/gcc", headers="/usr/include")
NO_DRIVER = "there is no NVIDIA driver here (NVML Shared Library Not Found); install it"


def h100(number: int, free: int = 79 * GIB, **fields: Any) -> Card:
    return Card(number, "H100", "570", **{"capability": (9, 0), "total": 80 * GIB, "free": free, **fields})


def looks(*cards: Card, host: HostParts = WHOLE) -> LookAtCards:
    return lambda: (cards, host)


def no_driver() -> Any:
    raise BackendError(NO_DRIVER)


def never() -> Any:
    raise AssertionError("no card is asked")


def chosen(device: str, look: LookAtCards, **settings: Any) -> ChosenDevice:
    found = Settings(applications={"a": "x"}, device=device, **settings)
    return choose_device(found.worker, found.worker.workers, look)


@pytest.mark.parametrize("device", ["cpu", "cuda-mirror"])
def test_without_a_card_in_question_none_is_asked(device: str) -> None:
    found = chosen(device, never)
    assert (found.device, found.where, found.notice) == (device, "", "")


def test_bits_of_a_card_are_not_dropped_where_auto_finds_none() -> None:
    with pytest.raises(
        SettingsError, match=f"^bits is 'fast', which is of a card, and device auto found none: {re.escape(NO_DRIVER)}$"
    ):
        chosen("auto", no_driver, bits="fast")
    assert chosen("auto", looks(h100(0)), bits="fast").device == "cuda:0"


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("auto", 1)])
def test_a_card_is_taken_with_the_memory_that_contexts_leave(device: str, number: int) -> None:
    full = h100(0, mig=device == "auto")
    found = chosen(device, looks(full, h100(1, 20 * GIB)), workers=2)
    assert found.device == f"cuda:{number}"
    assert found.free_memory == (20 if number else 79) * GIB - 2 * CONTEXT
    assert found.notice == f"the workers compute on card {number} (H100)"


@claim("`--device auto` takes a card that works, else says why not and uses the CPU", of="command-line")
@pytest.mark.parametrize(
    ("look", "why"),
    [
        (no_driver, NO_DRIVER),
        (looks(h100(0), host=HostParts(True, ("triton",), "gcc", "/usr")), "triton is not installed; run: pip install"),
        (looks(h100(0, capability=(7, 0))), "card 0 (H100) has compute capability 7.0"),
    ],
)
def test_auto_says_why_it_computes_on_the_cpu_where_cuda_is_refused(look: Callable[[], Any], why: str) -> None:
    found = chosen("auto", look)
    assert found.device == "cpu"
    assert found.notice.startswith(f"device auto computes on the CPU: {why}")
    with pytest.raises(SettingsError) as refused:
        chosen("cuda:0", look)
    assert str(refused.value).startswith(f"device is 'cuda:0', but {why}")


def test_workers_of_one_card_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Settings(applications={"a": "x"}, device="cuda", workers=2).worker

    def reading(*cards: Card, here: bool = False) -> WorkerReading:
        monkeypatch.setattr(device_choice.choose_device, "__defaults__", (looks(*cards),))
        return read_machine(worker, 2, here=here)

    found = reading(h100(0))
    assert (found.device, found.machine, found.free_memory) == ("cuda:0", this_machine(), 79 * GIB - 2 * CONTEXT)
    assert size_of(found, SizeRules(workers=2)).memory == int((79 * GIB - 2 * CONTEXT) * 0.6) // 2
    free = binary_size(79 * GIB - 2 * CONTEXT)
    for here, host in ((True, ""), (False, f" of {found.host}")):
        with pytest.raises(SizeRefused) as refused:
            size_of(reading(h100(0), here=here), SizeRules(memory=39 * GIB, workers=2))
        assert str(refused.value) == (
            f"memory is 39.0 GiB for each worker, 78.0 GiB for all 2, but only {free} are free for them on card 0 "
            f"(H100){host}; give less (--set memory=...)"
        )
    with pytest.raises(SettingsError, match=r"workers is 3, but card 0 .H100. has 1.7 GiB free, and each takes 640"):
        chosen("cuda", looks(h100(0, 1740 << 20)), workers=3)
    with pytest.raises(SettingsError) as refused_second:
        chosen("cuda", looks(h100(0, mode=3)), workers=2)
    assert str(refused_second.value) == (
        "workers is 2, but card 0 (H100) takes one process (compute mode exclusive); start 1, or change it "
        "(nvidia-smi -i 0 -c 0)"
    )
    assert chosen("cuda", looks(h100(0, mode=3))).device == "cuda:0"
    cpu = chosen("auto", looks(h100(0, mode=3)), workers=2)
    assert (cpu.device, cpu.notice) == ("cpu", f"device auto computes on the CPU: {refused_second.value}")


def test_a_refusal_names_the_machine_unless_it_is_the_one_at_hand() -> None:
    worker = Settings(applications={"a": "x"}).worker
    assert read_machine(worker, 1, here=True).where == "here"
    elsewhere = read_machine(worker, 1)
    assert elsewhere.where == f"on {elsewhere.host}"
    assert elsewhere.cores >= 1


@claim(
    "A card that is too small for what a worker's shapes need beside its memory is refused with the numbers",
    of="command-line",
)
def test_what_shapes_need_is_said_and_a_card_that_lacks_it_is_refused() -> None:
    wide = {"a": replace(model(), hidden=8192, intermediate=28672, vocabulary=128256)}
    settings = Settings(applications={"a": "x"}, device="cuda", sweep_tokens=4096)
    rules = size_rules(settings, wide)
    plain = {"machine": "m", "host": "h", "device": "cuda:0", "cores": 4, "where": "on card 0"}
    found = size_of(WorkerReading(**plain, free_memory=40 * GIB), rules)
    assert found.memory == int((40 * GIB - rules.beside) * 0.6)
    assert card_memory(found, rules) == (
        f"each worker has {binary_size(found.memory)} for parameters and KV; beside it 640.0 MiB context, "
        f"{rules.beside_sizes}"
    )
    assert rules.beside > 4 * 4096 * 2 * 28672, "the sums of a product of all tokens of a sweep"
    assert size_rules(Settings(applications={"a": "x"}), wide).beside == 0
    with pytest.raises(SizeRefused) as refused:
        size_of(WorkerReading(**plain, free_memory=2 * GIB), rules)
    assert str(refused.value) == (
        f"workers is 1, but only 2.0 GiB are free on card 0, and before any parameter each takes {rules.beside_sizes}; "
        "start fewer, give less sweep_tokens (4096) or max_rows (256), or choose a larger card"
    )


def test_float16_has_no_kernels() -> None:
    with pytest.raises(SettingsError, match="dtype is 'float16'; choose one of auto, float32, bfloat16"):
        Settings(applications={"a": "x"}, device="cuda", dtype="float16")

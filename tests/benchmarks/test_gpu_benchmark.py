"""The benchmark of a card runs whole on the mirror, so that no minute on a card is lost to a mistake.

One run of every part at the tiniest sizes, with a server of two workers. NVML is a fake. What is not built yet is a row that
says so, which this test names: it changes here when it is built. No figure of the mirror is judged.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import gpu_compile
import gpu_report
import pytest
from gpu_card import MIRROR, MirrorCard
from gpu_sizes import SIZES, TINY
from harness import ROOT, Report

from blockwright.tests.claims import claim
from blockwright.tests.gpu.cuda import fake_nvml as fake_nvml_module

# By its path: the package has a folder of the same name.
_SPEC = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
assert _SPEC is not None
assert _SPEC.loader is not None
gpu: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gpu)

NOT_BUILT = set[str]()
NOT_MEASURED = set[str]()
NOT_HERE = {"peers/vllm"}
# case and metric of figures that each part has to give
GIVEN = {
    "ceilings": ["copy bytes_per_s", "product flop_per_s", "launch gap_us", "host-to-device bytes_per_s"],
    "kernels": ["product/float32 error", "attend/bfloat16 error", "low-rank/bfloat16 error", "draw/float32 error"],
    "bits": [
        "tiles/bfloat16 differing",
        "narrow/float32 agrees",
        "attention/float32 differing",
        "served/cache differing",
        "graph-bucket differing",
    ],
    "equality": ["demo differing", "family-alternate differing", "preset-llama differing", "error-mean ratio"],
    "speed": [
        *("1B/decode1 of_copy", "1B/decode1 graphs_gain", "1B/truncated2 ms", "1B/on-host2 ms", "8B/decode2 host_share"),
        *("8B/prefill12 of_product", "8B/products2 of_mm"),
        "8B/invariant-decode2 of_fast",
    ],
    "peers": ["8B/decode1 tokens_per_s", "8B/decode2 tokens_per_s"],
    "deltas": ["8B/none2 ms", "8B/adapters2 ratio"],
    "memory": ["drop ms_per_gib", "restore differing", "account account_off"],
    "workers": ["pipeline differing", "exchange p99_chunks", "kill pause_ms", "kill differing"],
    "nvml": ["card memory_bytes", "card ask_ms"],
}


class FakeNvml(fake_nvml_module.FakeNvml):
    """NVML of a card with a MiB more in use at each reading."""

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        handle["free"] -= 1 << 20
        return super().nvmlDeviceGetMemoryInfo(handle)


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fake_nvml_module.card()))  # type: ignore[arg-type]


@pytest.mark.system
@claim(
    "The benchmark of a CUDA card runs whole without one: every part gives its rows, or says what is not built",
    of="numerics",
)
def test_every_part_gives_its_rows(tmp_path: Path, fake_nvml: None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    assert gpu.main(["--device", MIRROR, "--json", str(path)]) == 0
    stored = json.loads(path.read_text())
    states = {(f"{one['part']}/{one['case']}", one["state"]) for one in stored["settings"]["states"]}
    kinds = {gpu_report.NOT_BUILT: NOT_BUILT, gpu_report.NOT_MEASURED: NOT_MEASURED, gpu_report.NOT_HERE: NOT_HERE}
    assert states == {(case, kind) for kind, cases in kinds.items() for case in cases}
    rows = {f"{row['case']} {row['metric']}": row["value"] for row in stored["rows"]}
    missing = [f"{part}/{name}" for part in gpu.PARTS for name in GIVEN[part] if f"{part}/{name}" not in rows]
    assert not missing
    differing = {name: value for name, value in rows.items() if name.endswith(" differing")}
    assert set(differing.values()) == {0.0}, differing
    errors = {name: value for name, value in rows.items() if name.endswith(" error")}
    assert all(value < 0.01 for value in errors.values()), errors
    assert stored["machine"]["gpu"] == stored["settings"]["figures"] == "mirror: no figure of a card"
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line in {f"== {part}" for part in gpu.PARTS}] == [
        f"== {part}" for part in gpu.PARTS
    ]
    assert "MISS" not in printed


def test_a_case_that_fails_is_a_row_and_the_next_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    states: list[gpu_report.State] = []
    part = gpu_report.Part("some", MirrorCard(), TINY, Report("gpu", {}), states)
    with part.attempt("first"):
        raise ValueError("much to say\nthe last line\n")
    with part.attempt("second"):
        part.add("second", {"figure": 1.0})
    part.show()
    assert states == [gpu_report.State("some", "first", "failed", "ValueError: the last line")]
    printed = capsys.readouterr().out
    assert "FAILED  some/first: ValueError: the last line" in printed
    assert "some/second" in printed


def test_a_part_for_which_no_time_is_left_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LIMIT", -1.0)
    monkeypatch.setattr(gpu_compile, "prepare", lambda *_: None)
    found = gpu.measure(MIRROR, ["speed"], "tiny", None)
    (state,) = found["settings"]["states"]
    assert (state["part"], state["state"]) == ("speed", gpu_report.NOT_RUN)


def test_short_forms_cover_every_model_and_architecture() -> None:
    """All kernels are compiled before time is taken."""
    every = [(job.part, job.name) for job in gpu_compile.jobs(SIZES["whole"])]
    assert {name for part, name in every if part == "speed"} == set(SIZES["whole"].models)
    assert {name for part, name in every if part == "equality"} >= set(SIZES["whole"].architectures())
    assert all(
        size.layers == 1
        for job in gpu_compile.jobs(SIZES["whole"])
        if job.part == "speed"
        for size in job.sizes.models.values()
    )


def test_a_checkout_that_is_not_installed_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("PYTHONPATH", "before")
    gpu.prepare()
    link, _ = os.environ["PYTHONPATH"].split(os.pathsep)
    assert (Path(link) / "blockwright").resolve() == gpu.ROOT
    assert os.environ["TRITON_CACHE_DIR"].startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "cuda", "--sanitize", "--only", "speed"], "--sanitize runs kernels and bits, and keeps no figures"),
        (["--device", "cuda", "--sanitize", "--json", "x.json"], "leave other parts and --json out"),
        (["--sanitize", "--device", MIRROR], "--sanitize needs a card; here is none"),
        (["--device", MIRROR, "--json", "/no/such/folder/x.json"], "in a folder that does not exist; make it"),
        (["--device", MIRROR, "--json", str(ROOT / "benchmarks" / "results" / "gpu.json")], "are no figures of a card"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_a_card_is_used(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err

"""What workers are started with follows from settings, checkpoints and machine."""

from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.requests import RequestSettings
from blockwright.actors.settings.settings import Settings
from blockwright.actors.settings.workers import MOST_THREADS, WorkerSettings
from blockwright.actors.sizing import max_lengths, serving_dtype, size_rules, sized, worker_configs, worker_names
from blockwright.gpu.cpu.native.backend import MAX_THREADS
from blockwright.gpu.model.config import ModelConfig, RopeConfig
from blockwright.policies.cluster.worker_size import WorkerReading, WorkerReport, size_of


def model(dtype: str = "float32", layers: int = 4, max_position: int = 2048) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM", vocabulary=32, hidden=16, intermediate=32, layers=layers, heads=2, kv_heads=2,
        head_dim=8, eps=1e-5, rope=RopeConfig(theta=1e4), windows=(None,) * layers, max_position=max_position, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        (["float32"], "auto", "float32"),
        (["bfloat16", "bfloat16"], "auto", "bfloat16"),
        (["float16"], "auto", "float32"),
        (["bfloat16", "float32"], "auto", "float32"),
        (["float32"], "bfloat16", "bfloat16"),
    ],
)
def test_dtype(stored, asked, expected):
    models = {str(i): model(dtype) for i, dtype in enumerate(stored)}
    assert serving_dtype(WorkerSettings(dtype=asked), models) == expected


def test_lengths_are_the_models_own_up_to_a_limit():
    models = {"short": model(max_position=512), "long": model(max_position=131072)}
    assert max_lengths(RequestSettings(), models) == {"short": 512, "long": 8192}
    assert max_lengths(RequestSettings(max_model_len=300), models) == {"short": 300, "long": 300}
    assert max_lengths(RequestSettings(max_model_len=16384), {"long": models["long"]}) == {"long": 16384}
    with pytest.raises(SettingsError, match="max_model_len is 600, but short handles 512 positions; give at most 512"):
        max_lengths(RequestSettings(max_model_len=600), models)


def report(settings: Settings, *, free_memory: int = 1000, cores: int = 1) -> WorkerReport:
    reading = WorkerReading(machine="m", host="h", device="cpu", cores=cores, free_memory=free_memory, where="here")
    return size_of(reading, size_rules(settings, {"a": model()}))


def test_threads_are_no_more_than_the_kernels_take():
    assert report(Settings(), cores=1000).threads == MOST_THREADS == MAX_THREADS


MOST = {"workers": 4096, "gateways": 256, "dispatchers": 256, "threads": 256, "max_rows": 16384, "sweep_tokens": 1 << 20}


@pytest.mark.parametrize("name", MOST)
def test_numbers_beyond_any_machine_are_refused_before_anything_is_made_for_them(name):
    limit = MOST[name]
    for value in (limit + 1, 2_000_000_000):
        with pytest.raises(SettingsError, match=f"{name} is {value}; give at most {limit}"):
            Settings(**{"sweep_tokens": 1 << 20, name: value})
    assert Settings(**{"sweep_tokens": 1 << 20, name: limit}).value(name) == limit


def test_a_worker_is_told_its_memory_its_threads_and_its_device() -> None:
    config = worker_configs(Settings(workers=2, device="auto"), {"a": model()})["w1"]
    assert (config.name, config.worker_memory.memory, config.worker.threads, config.sharing) == ("w1", 0, 0, 2)
    told = sized(config, replace(report(Settings(workers=2), cores=5), device="cuda:1"))
    assert (told.worker_memory.memory, told.worker.threads, told.worker.device) == (300, 2, "cuda:1")
    assert sized(told, report(Settings(memory=77, threads=3))).worker.threads == 3


def test_the_limit_of_the_instruction_set_comes_to_every_worker():
    configs = worker_configs(Settings(workers=2, instruction_set="avx2"), {"a": model()})
    assert {config.worker.instruction_set for config in configs.values()} == {"avx2"}
    with pytest.raises(SettingsError, match="'sse9'; choose one of amx, avx512_bf16, avx512, avx2, generic"):
        Settings(instruction_set="sse9")


def test_tables_are_sized_for_the_largest_model():
    models = {"a": model(layers=4), "b": model(layers=6, max_position=4096)}
    (config,) = worker_configs(Settings(), models).values()
    assert (config.kv_layers, config.max_length) == (6, 4096)


SCALED: dict[str, Any] = {"autoscale": "relief", "autoscale_latency": 5.0, "autoscale_max_workers": 3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"autoscale": "often"}, "autoscale is 'often'; choose one of off, preemptive, relief"),
        ({"autoscale": "off"}, "autoscale_max_workers is 3, but autoscale is off; choose preemptive or relief"),
        ({"autoscale_latency": 0.0}, "autoscale_latency is missing"),
        ({"autoscale_cooldown": -1.0}, "autoscale_cooldown is -1.0; give seconds"),
        (
            {"autoscale": "preemptive"},
            "autoscale is preemptive, but dispatch=outstanding forecasts nothing; choose predicted-",
        ),
        ({"autoscale": "preemptive", "dispatch": "min-qpm"}, "but dispatch=min-qpm forecasts nothing"),
        ({"workers": 3}, "autoscale_max_workers is 3 with 3 workers; give 4 to 4096"),
        ({"workers": 2, "pipeline": 2}, "pipeline is 2, but autoscale adds single workers; give 1, or autoscale=off"),
    ],
)
def test_what_does_not_go_with_autoscale_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(**{**SCALED, **change})


def test_threads_and_memory_are_divided_among_all_workers_that_there_can_be() -> None:
    settings = Settings(**SCALED)
    assert worker_names(settings) == ["w0", "w1", "w2"]
    found = report(settings, cores=6)
    assert (found.memory, found.threads) == (200, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"overload": "maybe"}, "overload is 'maybe'; choose one of off, on"),
        ({"workers": 1}, "overload is on with 1 worker, which holds nothing twice; give 2 or more, or overload=off"),
        ({"workers": 4, "pipeline": 2}, "pipeline is 2, but overload makes pipelines of replicas; give 1, or overload=off"),
        ({"prefix_cache": False}, "overload is on, but prefix_cache is off"),
        ({"overload_throttled": 0.4}, "overload_throttled is 0.4; give more than 0.5, at most 1"),
        ({"overload_quiet": 1.5}, "overload_quiet is 1.5; give more than 0, at most 1"),
        ({"overload_quiet": 0.95}, r"overload_quiet is 0.95; give less than overload_throttled \(0.95\)"),
        ({"overload_quiet": 0.7, "overload_throttled": 0.6}, r"give less than overload_throttled \(0.6\)"),
        ({"overload_horizon": -1.0}, "overload_horizon is -1.0; give seconds, or 0"),
        ({"overload_most": 1}, "overload_most is 1; give at least 2, or overload=off"),
    ],
)
def test_what_does_not_go_with_overload_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(**{"overload": "on", "workers": 2, **change})
    assert Settings().parameter_drops.overload == "off"

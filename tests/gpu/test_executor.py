"""The executor obeys plans and refuses those that do not fit what it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockwright.gpu.backend import Backend
from blockwright.gpu.device import DeviceSizes
from blockwright.gpu.errors import BackendError, CheckpointError, ExecutorError
from blockwright.gpu.executor import Executor
from blockwright.gpu.select import REMEDY, SETS, open_backend, open_device, slow
from blockwright.policies.model.chain import KvLayout
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Arrival, Departure, MapGroup, Step, SweepPlan
from blockwright.tests.cap import CAP
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import CHUNK, GREEDY, Rig, load, placing

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]


@pytest.fixture
def rig(checkpoint: MakeCheckpoint) -> Rig:
    return Rig(open_backend("torch", "float32", 1), checkpoint("llama"))


def bare(name: str = "torch") -> Executor:
    backend = open_backend(name, "float32", 1, CAP)
    sizes = DeviceSizes(
        rows=2, max_length=32, kv_layers=3, max_tokens=16, page_size=8, budget=1 << 20, chunk=CHUNK, protect=True
    )
    return Executor(open_device(backend, sizes))


def test_a_sampled_token_is_the_next_input(rig: Rig) -> None:
    prompt = reference.prompt_of(5)
    first = rig.run([(0, 0, 5)], [0], rig.admit(0, prompt)).tokens
    assert rig.executor.tables.tokens[0, :6].tolist() == [*prompt, *first]
    result = rig.run([(0, 5, 1)], [0])
    assert [*first, *result.tokens] == list(reference.greedy(rig.checkpoint.path, prompt, 2))
    assert result.logprobs == [None]
    assert 0 < result.kernel_seconds <= result.seconds


def test_the_token_that_fills_a_sequence(rig: Rig) -> None:
    """A sequence of the greatest length reports its last token, though no table has a place for it."""
    prompt = reference.prompt_of(160)
    result = rig.run([(0, 0, 160)], [0], rig.admit(0, prompt))
    assert result.tokens == list(reference.greedy(rig.checkpoint.path, prompt, 1))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_tables_grow_under_a_sequence(checkpoint: MakeCheckpoint, backend: str) -> None:
    """The next sweep reads the KV of those before the growth, and later ones go beyond the old tables."""
    prompt, path = reference.prompt_of(20), checkpoint("llama")
    rig = Rig(open_backend(backend, "float32", 1 if backend == "torch" else 2), path, max_length=24)
    tokens = rig.run([(0, 0, 20)], [0], rig.admit(0, prompt, GREEDY, 24)).tokens
    list(rig.executor.grow(200, rig.checkpoint.config.layers + 5))
    tokens += rig.run([(0, 20, 1)], [0]).tokens
    assert tokens == list(reference.greedy(path, prompt, 2))
    assert reference.confirm(path, prompt, tuple(rig.generate(1, prompt, 100, chunk=7))) == 100


def test_seeded_sampling_repeats(rig: Rig) -> None:
    params = SamplingParams(seed=4, temperature=1.5, top_p=0.95, presence_penalty=0.4)
    prompt = reference.prompt_of(9)
    first = rig.generate(0, prompt, 20, params)
    assert rig.generate(3, prompt, 20, params, chunk=4) == first
    assert rig.generate(1, prompt, 20, SamplingParams(seed=5, temperature=1.5)) != first


def test_prompts_that_are_not_sampled(rig: Rig) -> None:
    result = rig.run([(0, 0, 3), (1, 0, 4)], [1], [*rig.admit(0, [5, 6, 7]), *rig.admit(1, reference.prompt_of(4))])
    assert result.tokens == list(reference.greedy(rig.checkpoint.path, reference.prompt_of(4), 1))
    assert rig.executor.tables.tokens[0, 3] == 0


def test_memory_and_unloading(checkpoint: MakeCheckpoint) -> None:
    rig = Rig(open_backend("torch", "float32", 1), checkpoint("llama"))
    executor, ids = rig.executor, [spec.component.id for spec in rig.specs]
    committed = executor.committed()
    assert committed["parameters"] >= rig.checkpoint.nbytes
    assert list(committed) == ["parameters", "kv-2x16-float32-8"]
    with pytest.raises(ExecutorError, match="part of runs"):
        executor.unload(ids[0], [])
    with pytest.raises(ExecutorError, match="already composed"):
        executor.compose(0, ids, 0)
    executor.drop(0)
    for spec in rig.specs:
        executor.unload(spec.component.id, [part.id for part in executor.backend.parts(spec)])
    with pytest.raises(ExecutorError, match="not loaded"):
        executor.compose(1, ids, 0)
    count = committed["parameters"] // CHUNK
    executor.map(MapGroup("parameters", 0, list(range(count)), back=True))
    assert executor.committed()["parameters"] == 0
    executor.execute(SweepPlan(1, memory=[MapGroup("parameters", 0, list(range(count)), back=False)]))
    for spec in rig.specs:
        load(executor, spec, rig.placing)
    executor.compose(1, ids, 0)
    rig.runs = [1]
    prompt = reference.prompt_of(12)
    assert rig.generate(0, prompt, 5) == list(reference.greedy(rig.checkpoint.path, prompt, 5))


def test_two_models_share_components_and_sweeps(checkpoint: MakeCheckpoint, make_backend: Make, tmp_path: Path) -> None:
    """A checkpoint whose upper layers differ: the lower run serves rows of both, each row equals its own reference."""
    first, second = checkpoint("llama"), upper_differs(checkpoint("llama"), checkpoint("llama", seed=1), tmp_path)
    rig, other = Rig(make_backend(), first, cuts=[5]), Rig(make_backend(), second, cuts=[5])
    same = [a.component.id == b.component.id for a, b in zip(rig.specs, other.specs, strict=True)]
    assert same == [True] * 5 + [False] * 3
    first_chunk = rig.executor.committed()["parameters"] // CHUNK
    places = placing(rig.executor.backend, other.specs[5:], first_chunk * CHUNK)
    chunks = list(range(700, 700 + -(-places.end // CHUNK) - first_chunk))
    rig.executor.map(MapGroup("parameters", first_chunk, chunks, back=False))
    for spec in other.specs[5:]:
        load(rig.executor, spec, places)
    rig.executor.compose(7, [spec.component.id for spec in other.specs[5:]], 2)
    prompts = [reference.prompt_of(length) for length in (6, 11, 3)]
    edits = [edit for row, prompt in enumerate(prompts) for edit in rig.admit(row, prompt)]
    plan = rig.plan([(row, 0, len(prompt)) for row, prompt in enumerate(prompts)], [0, 1, 2], edits)
    plan.steps = [Step(0, [0, 1, 2]), Step(1, [0, 2]), Step(7, [1])]
    models = (first, second, first)
    want = [reference.greedy(path, prompt, 1)[0] for path, prompt in zip(models, prompts, strict=True)]
    assert rig.executor.execute(plan).tokens == want


def upper_differs(lower: Path, upper: Path, target: Path) -> Path:
    """A copy of ``lower`` with the last layer, norm and head of ``upper``."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(lower, target, dirs_exist_ok=True)
    tensors, others = load_file(lower / "model.safetensors"), load_file(upper / "model.safetensors")
    taken = ("model.layers.2.", "model.norm", "lm_head")
    mixed = {name: others[name] if name.startswith(taken) else tensor for name, tensor in tensors.items()}
    save_file(mixed, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_refuses_wrong_memory() -> None:
    executor = bare()
    executor.map(MapGroup("parameters", 0, [3, 4], back=False))
    with pytest.raises(ExecutorError, match="in use"):
        executor.map(MapGroup("parameters", 2, [4], back=False))
    with pytest.raises(ExecutorError, match="were not in use"):
        executor.map(MapGroup("parameters", 0, [5], back=True))
    with pytest.raises(ExecutorError, match="'kv' does not exist"):
        executor.map(MapGroup("kv", 0, [5], back=False))
    assert executor.committed() == {"parameters": 2 * CHUNK}
    layout = KvLayout(2, 16, "float32", 8)
    assert executor.add_layout(layout) == executor.add_layout(layout) == layout.key
    with pytest.raises(BackendError, match="bfloat16"):
        executor.add_layout(KvLayout(2, 16, "bfloat16", 8))


def test_refuses_wrong_loads(rig: Rig) -> None:
    executor, specs = bare(), rig.specs
    backend = executor.backend
    with pytest.raises(ExecutorError, match="not committed"):
        load(executor, specs[0], placing(backend, specs))
    executor.map(MapGroup("parameters", 0, list(range(8)), back=False))
    with pytest.raises(ExecutorError, match="multiple of 64"):
        load(executor, specs[1], placing(backend, specs[1:], 8))
    load(executor, specs[1], placing(backend, specs[1:], 64))
    with pytest.raises(ExecutorError, match="already loaded"):
        load(executor, specs[1], placing(backend, specs[1:], 64))
    same = replace(specs[1], component=replace(specs[1].component, id=b"another"))
    with pytest.raises(ExecutorError, match="packed at 64 already, not 128"):
        load(executor, same, placing(backend, specs[1:], 128))
    load(executor, same, placing(backend, specs[1:], 64))
    with pytest.raises(ExecutorError, match="empty"):
        executor.compose(0, [], 0)
    with pytest.raises(ExecutorError, match="not composed"):
        executor.drop(0)
    with pytest.raises(ExecutorError, match="not loaded"):
        executor.compose(0, [specs[0].component.id], 0)
    executor.unload(specs[0].component.id, [])  # a load that was stopped before it began


def test_a_load_that_is_stopped_can_begin_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that was whole stays, if it was not to be forgotten; one that was half packed is packed anew."""
    executor, spec = bare(), rig.specs[1]
    executor.parameters.slice_bytes = 4096
    parts, packed = executor.backend.parts(spec), []
    pack = executor.backend.pack
    monkeypatch.setattr(executor.backend, "pack", lambda part, *rest: (packed.append(part.role), pack(part, *rest)))
    executor.map(MapGroup("parameters", 0, list(range(8)), back=False))
    places = placing(executor.backend, [spec])
    offsets = [places.offsets[part.id] for part in parts]
    steps = executor.load(spec, offsets)
    for _ in range(6):
        next(steps)
    assert packed == ["norm", "q", "q", "q", "q", "k"]
    with pytest.raises(ExecutorError, match="already loaded"):
        executor.load(spec, offsets)
    executor.unload(spec.component.id, [parts[0].id])
    packed.clear()
    load(executor, spec, places)
    assert packed == ["norm", "k", "k", *"vvoooo"]
    executor.add_layout(KvLayout(2, 16, "float32", 8))
    executor.compose(0, [spec.component.id], 0)


@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_step_of_a_load_packs_no_more_than_a_slice(
    checkpoint: MakeCheckpoint, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for rows that are packed together; and small tensors are packed in one step."""
    rig = Rig(open_backend(name, "float32", 1, CAP), checkpoint("phi3"))
    executor, steps = bare(name), list[list[int]]()
    executor.parameters.slice_bytes = 20_000
    pack = executor.backend.pack
    monkeypatch.setattr(
        executor.backend, "pack", lambda part, raw, *to: (steps[-1].append(raw.nbytes), pack(part, raw, *to))
    )
    places = placing(executor.backend, rig.specs)
    executor.map(MapGroup("parameters", 0, list(range(-(-places.end // CHUNK))), back=False))
    for spec in rig.specs:
        steps.append([])
        for _ in executor.load(spec, [places.offsets[part.id] for part in executor.backend.parts(spec)]):
            steps.append([])
    assert all(sum(step) <= 20_000 for step in steps)
    assert max(len(step) for step in steps) > 1
    assert len(steps) > rig.checkpoint.nbytes / 20_000


def test_refuses_chains_that_do_not_join(rig: Rig) -> None:
    ids = [spec.component.id for spec in rig.specs]
    with pytest.raises(ExecutorError, match="head at place 1 of 3"):
        rig.executor.compose(5, [ids[2], ids[7], ids[2]], 0)
    with pytest.raises(ExecutorError, match="joins widths 64 and 0"):
        rig.executor.compose(5, [ids[1], ids[0]], 0)
    with pytest.raises(ExecutorError, match="KV layers up to 6, the tables have 5"):
        rig.executor.compose(5, ids, 3)
    executor = bare()
    executor.map(MapGroup("parameters", 0, list(range(8)), back=False))
    load(executor, rig.specs[1], placing(executor.backend, rig.specs[1:2]))
    with pytest.raises(ExecutorError, match="needs arena kv-2x16-float32-8"):
        executor.compose(0, ids[1:2], 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": [Step(9, [0])]}, "run 9"),
        ({"steps": []}, r"samples batch rows \[0\]"),
        ({"count": [600]}, "600 tokens"),
        ({"start": [159]}, "positions beyond 160"),
        ({"row": [8]}, "rows beyond 8"),
        ({"count": [0]}, "empty row"),
        ({"arrivals": [Arrival(3, [0])]}, "flight 3, which did not come"),
        ({"departures": [Departure("w1", "w0", 32, [0], [])]}, "width 32"),
    ],
)
def test_refuses_plans(rig: Rig, change: dict[str, object], words: str) -> None:
    plan = rig.plan([(0, 0, 5)], [0], rig.admit(0, reference.prompt_of(5), GREEDY, 16))
    for name, value in change.items():
        setattr(plan, name, value)
    with pytest.raises(ExecutorError, match=words):
        rig.executor.execute(plan)


def test_refuses_wrong_flights(rig: Rig) -> None:
    with pytest.raises(ExecutorError, match="not 512"):
        rig.executor.put_flight(1, bytes(100), 2, 64)
    rig.executor.put_flight(1, bytes(512), 2, 64)
    plan = rig.plan([(0, 0, 3)])
    plan.arrivals = [Arrival(1, [0])]
    with pytest.raises(ExecutorError, match="carries 2 tokens"):
        rig.executor.execute(plan)


def test_open_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_backend("torch", "bfloat16", 1).dtype is torch.bfloat16
    assert "for tests alone; choose device cpu" in slow("auto", open_backend("cuda-mirror", "float32", 1), "float32", 1)
    with pytest.raises(BackendError, match="'cuda' does not exist"):
        open_backend("cuda", "float32", 1)
    with pytest.raises(BackendError, match="float16"):
        open_backend("torch", "float16", 1)
    monkeypatch.setitem(__import__("sys").modules, "blockwright.gpu.cpu.native.backend", None)
    # ... as on a machine without a compiler:
    backend = open_backend("auto", "float32", 1)
    assert backend.name == "torch"
    outcome = slow("auto", backend, "float32", 1)
    assert outcome.startswith(
        "the torch reference computes, several times slower than the native kernels: import of blockwright"
    )
    assert outcome.endswith(f"; {REMEDY}")
    assert slow("torch", backend, "float32", 1) == "", "it was asked for"
    with pytest.raises(BackendError, match="native back end does not load"):
        open_backend("native", "float32", 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_instruction_set_can_be_limited(dtype: str) -> None:
    """To one that may not exist here, or not for the type: then it is the next."""
    here = [open_backend("native", dtype, 1, name).numerics for name in SETS]
    assert here[-1] == f"native-generic-{dtype}"
    order = [f"native-{kernels}-{dtype}" for kernels in SETS]
    places = [order.index(numerics) for numerics in here]
    assert places == sorted(places)
    assert all(place >= index for index, place in enumerate(places))
    assert here[0] == open_backend("native", dtype, 1).numerics, "without a limit the best"
    assert open_backend("torch", dtype, 1, "avx2").name == "torch"


def test_a_file_that_is_cut_before_loading(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    import shutil

    path = Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))
    backend, weights = open_backend("torch", "float32", 1), path / "model.safetensors"

    class Cut(Rig):
        def _load(self, backend: Backend) -> None:
            weights.write_bytes(weights.read_bytes()[:4096])
            super()._load(backend)

    with pytest.raises(CheckpointError, match="cannot be read"):
        Cut(backend, path)

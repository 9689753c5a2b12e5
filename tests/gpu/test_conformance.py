"""Every back end computes what transformers computes: all architectures, any paging, chunking, batching and cutting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from blockwright.gpu.backend import Backend
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.memory import HostArena
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.plan.sweep_plan import Arrival, Departure, Edit, Step
from blockwright.tests.checkpoints import PRESETS
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig

# Of log-probabilities in float32 from float64, which no processor computes otherwise: twice the worst of all instruction
# sets. GPT-NeoX's livelier weights magnify a rounding.
TOLERANCE = dict.fromkeys(PRESETS, 4e-5) | dict.fromkeys(("gpt-neox", "gpt-neox-serial"), 1e-4)

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]


def assert_near(rig: Rig, path: Path, architecture: str, tokens: list[int], given: int, chunk: int) -> None:
    ours = torch.tensor(rig.logprobs(0, tokens, given, chunk))
    exact = reference.logits(path, tokens, "float64").log_softmax(-1)[given - 1 :]
    assert ours.shape == exact.shape
    assert float((ours - exact).abs().max()) < TOLERANCE[architecture]


@claim(
    "Llama, Mistral, Qwen 2 and 3, Gemma 1 and 2, Phi-3, GLM-4, OLMo-2, Granite and GPT-NeoX are served",
    of="checkpoints",
    headline=True,
)
@pytest.mark.best  # the others compute the same logits, below
@pytest.mark.parametrize("architecture", list(PRESETS))
def test_greedy_tokens(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    path, prompt = checkpoint(architecture), reference.prompt_of(37)
    found = Rig(make_backend(), path).generate(0, prompt, 64)
    assert len(set(found[: reference.confirm(path, prompt, tuple(found))])) >= 30


@claim("Logits in float32 equal those of transformers, whatever the chunk", of="numerics")
@pytest.mark.parametrize("architecture", list(PRESETS))
def test_logits_of_chunked_prefill_and_decode(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    path = checkpoint(architecture)
    assert_near(Rig(make_backend(), path), path, architecture, list(reference.prompt_of(40)), 29, 7)


@claim("Logits in float32 equal those of transformers, whatever the chunk", of="numerics")
@pytest.mark.best  # that chunks change no bit on any of them: test_bits.py
@pytest.mark.parametrize("architecture", list(PRESETS))
@pytest.mark.parametrize("chunk", [1, 512])
def test_logits_whatever_the_chunk(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, chunk: int) -> None:
    path = checkpoint(architecture)
    assert_near(Rig(make_backend(), path), path, architecture, list(reference.prompt_of(40)), 29, chunk)


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma2"])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_page_sizes(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, page_size: int) -> None:
    path = checkpoint(architecture)
    assert_near(Rig(make_backend(), path, page_size), path, architecture, list(reference.prompt_of(38)), 33, 9)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 150])
def test_prompt_lengths(make_backend: Make, checkpoint: MakeCheckpoint, length: int) -> None:
    path, prompt = checkpoint("llama"), reference.prompt_of(length)
    found = Rig(make_backend(), path).generate(0, prompt, 10, chunk=32)
    assert reference.confirm(path, prompt, tuple(found)) > 5


@claim("Prompts are prefilled in chunks beside sequences that decode", of="serving")
@pytest.mark.parametrize("architecture", ["llama3", "qwen2-windows"])
def test_batches_of_prefill_and_decode(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    """Six sequences of different lengths that join one by one: each gets the tokens that it gets alone."""
    path = checkpoint(architecture)
    rig = Rig(make_backend(), path)
    prompts = [reference.prompt_of(length, seed=5) for length in (3, 20, 9, 33, 1, 16)]
    done = [0] * 6
    out = [[] for _ in prompts]
    edits = []
    for sweep in range(24):
        live = [row for row in range(6) if sweep >= 2 * row][::-1]
        for row in live:
            if sweep == 2 * row:
                edits += rig.admit(row, prompts[row])
        known = [len(prompts[row]) + len(out[row]) for row in range(6)]
        batch = [(row, done[row], min(5, known[row] - done[row])) for row in live]
        sample = [n for n, (row, start, count) in enumerate(batch) if start + count == known[row]]
        result = rig.run(batch, sample, edits)
        edits = []
        for row, start, count in batch:
            done[row] = start + count
        for n, token in zip(sample, result.tokens, strict=True):
            out[batch[n][0]].append(token)
    for row, prompt in enumerate(prompts):
        assert reference.confirm(path, prompt, tuple(out[row])) >= 6


@claim("A cut of the chain into blocks changes no bit", of="numerics")
@pytest.mark.parametrize("architecture", ["llama-biases", "mistral-window", "gemma2", "gpt-neox"])
def test_cutting_the_chain_changes_no_bit(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    path, tokens = checkpoint(architecture), list(reference.prompt_of(30))
    whole = Rig(make_backend(), path).logprobs(0, tokens, 20, 8)
    cut = Rig(make_backend(), path, cuts=range(1, len(Checkpoint.open(path)))).logprobs(0, tokens, 20, 8)
    assert whole == cut


def test_rows_that_lie_apart_in_the_batch(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    """Steps over batch rows in another order, and over some of them only, as with several chains in one sweep."""
    path = checkpoint("llama")
    rig = Rig(make_backend(), path, cuts=[3])
    prompts = [reference.prompt_of(length, seed=3) for length in (4, 7, 2, 5)]
    edits = [edit for row, prompt in enumerate(prompts) for edit in rig.admit(row, prompt)]
    plan = rig.plan([(row, 0, len(prompts[row])) for row in range(4)], [1, 3, 0, 2], edits)
    plan.steps = [Step(0, [2, 0]), Step(0, [3, 1]), Step(1, [0, 3]), Step(1, [1, 2])]
    result = rig.executor.execute(plan)
    assert result.tokens == [reference.greedy(path, prompts[row], 1)[0] for row in (1, 3, 0, 2)]


def test_a_chain_over_two_executors(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    """The lower part departs, the upper part arrives: tokens equal those of the whole chain."""
    path, prompts = checkpoint("qwen2"), [reference.prompt_of(6), reference.prompt_of(9)]
    lower, upper = Rig(make_backend(), path, cuts=[5]), Rig(make_backend(), path, cuts=[5])
    batch = [(row, 0, len(prompt)) for row, prompt in enumerate(prompts)]
    edits = [edit for row, prompt in enumerate(prompts) for edit in lower.admit(row, prompt)]
    down = lower.plan(batch, [], edits)
    down.steps = [Step(0, [0, 1])]
    down.departures = [Departure("w1", "w0", 64, [1, 0], [])]
    left = lower.executor.submit(down)
    assert left.wait().tokens == []
    edits = [edit for row, prompt in enumerate(prompts) for edit in upper.admit(row, prompt)]
    up = upper.plan(batch, [0, 1], edits)
    up.arrivals, up.steps = [Arrival(9, [1, 0])], [Step(1, [0, 1])]
    (hidden,) = left.departed
    if not isinstance(hidden, memoryview):
        memory = bytearray(hidden.nbytes)
        hidden.copy_to(memory)
        hidden = memoryview(memory)
    upper.executor.put_flight(9, hidden, 15, 64)
    assert upper.executor.execute(up).tokens == [reference.greedy(path, prompt, 1)[0] for prompt in prompts]


def test_what_lies_in_unused_slots_does_not_matter(
    make_backend: Make, checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that held something else before, not-a-number everywhere, gives the same bits as zeros."""
    path, prompt = checkpoint("mistral-window"), reference.prompt_of(21)
    rig = Rig(make_backend(), path)  # under test, new chunks hold no numbers
    edits = [edit for row in (0, 1) for edit in rig.admit(row, prompt)]
    rig.run([(0, 0, 3), (1, 0, 11)], [], edits)  # rows of unlike length decode together
    rig.run([(0, 3, 1), (1, 11, 1)], [0, 1])
    found, commit = rig.logprobs(2, list(prompt), 13, 5), HostArena.commit

    def commit_zeros(self: HostArena, first: int, ids: Sequence[int]) -> None:
        commit(self, first, ids)
        self.view(first * self.chunk, len(ids) * self.chunk).zero_()

    monkeypatch.setattr(HostArena, "commit", commit_zeros)
    assert found == Rig(make_backend(), path).logprobs(0, list(prompt), 13, 5)


def test_progress_is_seen_while_a_plan_is_executed(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    """Another thread so tells a worker that computes from one that hangs. It may come too late for some of the plans."""
    backend = make_backend()
    seen = set[int]()
    largest = 0
    done = threading.Event()
    enough = 5 if isinstance(backend, NativeBackend) else 2  # more values than those between two calls
    rig, interval = Rig(backend, checkpoint("llama")), sys.getswitchinterval()
    if isinstance(backend, NativeBackend):
        backend.delay(1, 2000)  # a phase takes longer than the watcher's turns

    def watch() -> None:
        while not done.is_set():
            seen.add(rig.executor.progress())

    watcher = threading.Thread(target=watch)
    sys.setswitchinterval(1e-4)
    watcher.start()
    try:
        edits: Sequence[Edit] = rig.admit(0, reference.prompt_of(100))
        for _ in range(500):
            seen.clear()
            rig.run([(0, 0, 100)], [0], edits)
            edits, largest = (), max(largest, len(seen))
            if largest > enough:
                break
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(interval)
    assert largest > enough

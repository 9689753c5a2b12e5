"""Whole models through the kernels alone, interpreted, with the host code of the CUDA back end around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockwright.gpu.cuda.platforms import open_interpreted
from blockwright.gpu.select import open_backend
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig
from blockwright.tests.parts import some

ARCHITECTURES = ("llama", "gemma2", "gpt-neox", "olmo2")
TOLERANCE = 1e-4  # of log-probabilities in float32, as in test_conformance.py


@claim("Models answer through the CUDA kernels, interpreted, as transformers computes them", of="numerics")
@pytest.mark.parametrize("architecture", some(ARCHITECTURES, "llama", "gpt-neox"))
def test_chunked_prefill_and_decode(checkpoint: Callable[..., Path], architecture: str) -> None:
    path, tokens = checkpoint(architecture), list(reference.prompt_of(12))
    ours = torch.tensor(Rig(open_interpreted("float32"), path).logprobs(0, tokens, 10, 7))
    exact = reference.logits(path, tokens, "float64").log_softmax(-1)[9:]
    assert float((ours - exact).abs().max()) < TOLERANCE


def test_it_is_opened_by_name() -> None:
    backend = open_backend("cuda-interpreted", "bfloat16", 1)
    assert backend.numerics.startswith("cuda-interpreted-triton-")
    assert backend.dtype is torch.bfloat16

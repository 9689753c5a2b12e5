"""Calls of torch that give a row the same bits whatever else is in the step: of fixed shapes, on aligned memory.

Torch and its libraries sum in an order that may depend on the number of rows, on a row's place among them and on the
address, and they compute the end of an array by other code than its middle. Legend: T tokens, D input width, Q output width.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

SIZES = (64, 16, 4, 1)  # rows of a call
LARGEST = 1 << 27  # elements of a matrix whose calls are compared; with larger ones rows are computed one by one
PIECE = 16384  # elements of a call; torch cuts longer arrays anywhere, one part for each thread
VECTOR = 64  # elements; torch computes whole vectors by one code
ALIGNMENT = 64  # bytes
NOISE = 65521  # values that are repeated
KIND = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")  # of a processor


def variety(threads: int, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return a name of what torch's sums depend on, such as "avx2-1f3a9c0b": its build, the processor and the threads."""
    kind: dict[str, str] = {}
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        for name, _, value in lines:
            kind.setdefault(name.strip(), value.strip())  # the first processor stands for all
    known = [kind.get(name, "") for name in KIND] if kind else [platform.machine(), platform.processor()]
    digest = hashlib.sha256("\n".join([*known, torch.__version__, str(threads)]).encode()).hexdigest()
    return f"{torch.backends.cpu.get_cpu_capability().lower()}-{digest[:8]}"


def aligned(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, copied if it does not begin at an aligned address."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


class TorchCalls:
    """Products and functions of single elements, as torch sums them: for training."""

    def linear(self, x_TD: torch.Tensor, weight_QD: torch.Tensor, bias_Q: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product [T, Q] of rows with a matrix."""
        return F.linear(x_TD, weight_QD, bias_Q)

    def each(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Apply a function of single elements to a contiguous tensor."""
        return function(x)


class FixedCalls(TorchCalls):
    """The same with bits that do not depend on the other rows. Keeps the numbers of rows that were found for each shape."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int, bool, torch.dtype], tuple[int, ...]] = {}

    def linear(self, x_TD: torch.Tensor, weight_QD: torch.Tensor, bias_Q: torch.Tensor | None = None) -> torch.Tensor:
        if not len(x_TD):
            return F.linear(x_TD, weight_QD, bias_Q)
        outputs, width = weight_QD.shape
        key = (outputs, width, bias_Q is not None, weight_QD.dtype)
        if key not in self._sizes:
            self._sizes[key] = agreeing(*key)
        sizes = self._sizes[key]
        blocks, first = [], 0
        while first < len(x_TD):
            size = next((size for size in sizes if size <= len(x_TD) - first), sizes[-1])
            block_SD = x_TD[first : first + size]
            missing = size - len(block_SD)
            block_SD = F.pad(block_SD, (0, 0, 0, missing)) if missing else aligned(block_SD)
            blocks.append(F.linear(block_SD, weight_QD, bias_Q)[: size - missing])
            first += size
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def each(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten()
        pieces = []
        for piece in torch.split(flat, PIECE):
            missing = -len(piece) % VECTOR
            whole = F.pad(piece, (0, missing)) if missing else aligned(piece)
            pieces.append(function(whole)[: len(piece)])
        return torch.cat(pieces).view(x.shape)


def agreeing(outputs: int, width: int, biased: bool, dtype: torch.dtype) -> tuple[int, ...]:
    """Return numbers of rows, most first, with which a product gives a row the same bits, at any place.

    They are found by computing. All terms of the sums cancel: only rounding is left, which tells orders apart.
    """
    if outputs * width > LARGEST:
        return (1,)
    generator = torch.Generator().manual_seed(0)
    half = width // 2
    noise = torch.randn(NOISE, generator=generator).to(dtype)
    order = torch.randperm(half, generator=generator)
    some_QD = noise.repeat(-(-outputs * half // NOISE) or 1)[: outputs * half].view(outputs, half)
    weight_QD = torch.zeros(outputs, width, dtype=dtype)
    weight_QD[:, :half] = some_QD
    weight_QD[:, half : 2 * half] = -some_QD[:, order]
    x_D = torch.zeros(width, dtype=dtype)
    x_D[:half] = torch.randn(half, generator=generator)
    x_D[half : 2 * half] = x_D[:half][order]
    bias_Q = noise[torch.arange(outputs) % NOISE] * 2**-10 if biased else None
    groups: list[tuple[torch.Tensor, list[int]]] = []
    for size in SIZES:
        y_SQ = F.linear(x_D.repeat(size, 1), weight_QD, bias_Q)
        if not (y_SQ == y_SQ[0]).all():
            continue  # a row's bits depend on its place
        for y_Q, sizes in groups:
            if torch.equal(y_Q, y_SQ[0]):
                sizes.append(size)
                break
        else:
            groups.append((y_SQ[0], [size]))
    return max((tuple(sizes) for _, sizes in groups), key=len)

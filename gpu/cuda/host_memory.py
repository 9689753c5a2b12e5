"""Views of host memory by address, for operations that are given addresses. Nothing is read until a view is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import torch

Watch = Callable[[int, int], None]  # is given address and bytes of each view
_watches: list[Watch] = []


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Show ``watch`` what is viewed within the context. One thread at a time computes here."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.pop()


def view(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the memory at ``address``. The caller keeps that memory mapped while the tensor is used."""
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    for watch in _watches:
        watch(address, nbytes)
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype).view(tuple(shape))


def ints(address: int, *shape: int) -> np.ndarray:
    """Return an int32 array over the memory at ``address``."""
    return view(address, shape, torch.int32).numpy()


def longs(address: int, *shape: int) -> np.ndarray:
    """Return an int64 array over the memory at ``address``."""
    return view(address, shape, torch.int64).numpy()


def floats(address: int, *shape: int) -> torch.Tensor:
    return view(address, shape, torch.float32)

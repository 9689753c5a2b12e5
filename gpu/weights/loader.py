"""Reads one raw tensor at a time from a safetensors file, without ever holding the file.

A tensor is a view over a private mapping of its own pages; it vanishes, and its pages with it, when the tensor is dropped.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Mapping

import torch

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import TensorRef

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_tensor(ref: TensorRef) -> torch.Tensor:
    """The tensor in its stored type and shape. Raises ``CheckpointError`` when the file has become shorter or is gone."""
    dtype = DTYPES[ref.dtype]
    if ref.nbytes == 0:
        return torch.empty(ref.shape, dtype=dtype)
    first, last = ref.stretches()[0], ref.stretches()[-1]
    nbytes = last[0] + last[1] - first[0]  # more than the tensor's where it is some of the rows of a fused one
    base = ref.offset - ref.offset % mmap.ALLOCATIONGRANULARITY
    skip = ref.offset - base
    try:
        with open(ref.path, "rb") as file:
            # a copy-on-write mapping counts as writable, which torch asks of buffers; nobody writes
            pages = mmap.mmap(file.fileno(), skip + nbytes, access=mmap.ACCESS_COPY, offset=base)
    except (OSError, ValueError) as error:
        crowded = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        remedy = "allow more open files (ulimit -n)" if crowded else "download the file again"
        raise CheckpointError(f"{ref.path}: tensor {ref.name} cannot be read ({error}); {remedy}") from None
    pages.madvise(mmap.MADV_SEQUENTIAL)
    raw = torch.frombuffer(pages, dtype=torch.uint8, count=nbytes, offset=skip)
    if ref.stretch:
        raw = raw.as_strided((ref.nbytes // ref.stretch, ref.stretch), (ref.step, 1)).reshape(-1)
    elif skip % dtype.itemsize:  # old files align nothing
        raw = raw.clone()
    return raw.view(dtype).view(ref.shape)


def read_tensors(refs: Mapping[str, TensorRef]) -> dict[str, torch.Tensor]:
    """All raw tensors of a component, or of a delta, by role."""
    return {role: read_tensor(ref) for role, ref in refs.items()}

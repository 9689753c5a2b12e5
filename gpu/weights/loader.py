"""Reads rows of one raw tensor at a time from a safetensors file, without ever holding the file.

Rows are a view over a private mapping of their own pages, which vanish when the view is dropped.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Mapping

import torch

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import TensorRef

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_rows(ref: TensorRef, first: int, last: int) -> torch.Tensor:
    """Rows ``first`` .. ``last - 1`` of a tensor (elements, where it has one dimension) in its stored type.

    Raises ``CheckpointError`` when the file has become shorter or is gone.
    """
    dtype = DTYPES[ref.dtype]
    shape = (last - first, *ref.shape[1:])
    if ref.nbytes == 0 or first == last:
        return torch.empty(shape, dtype=dtype)
    row = ref.nbytes // ref.shape[0]
    if not ref.stretch:
        return _mapped(ref, ref.offset + first * row, shape[0] * row).view(dtype).view(shape)
    together = ref.stretch // row  # rows of a stretch
    begin, end = first // together, -(-last // together)
    span = (end - begin - 1) * ref.step + ref.stretch
    raw = _mapped(ref, ref.offset + begin * ref.step, span).as_strided((end - begin, ref.stretch), (ref.step, 1)).reshape(-1)
    return raw[(first - begin * together) * row :][: shape[0] * row].view(dtype).view(shape)


def _mapped(ref: TensorRef, offset: int, nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] of the tensor's file, at an address that fits its type."""
    base = offset - offset % mmap.ALLOCATIONGRANULARITY
    skip = offset - base
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
    return raw.clone() if skip % DTYPES[ref.dtype].itemsize else raw  # old files align nothing


def read_tensors(refs: Mapping[str, TensorRef]) -> dict[str, torch.Tensor]:
    """Whole tensors by role, such as those of a delta."""
    return {role: read_rows(ref, 0, ref.shape[0]) for role, ref in refs.items()}

"""Loading of weights: reads rows of one raw tensor at a time from a safetensors file, without ever holding the whole file.

Rows are a view over a private mapping of their own pages, which vanish when the view is dropped. What is loaded is hashed
and compared with the hash from when the model was added: packed tensors are shared, so a file's later content must not
replace content that others rely on.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Generator

import torch

from ..errors import CheckpointError
from ..model.config import ComponentSpec, DeltaSpec, TensorRef
from ..regular_file import open_regular
from .identity import begin_hash, delta_id

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_rows(ref: TensorRef, first: int, last: int) -> torch.Tensor:
    """Return rows ``first`` .. ``last - 1`` of a tensor (elements, if it has one dimension) in its stored type.

    Raises ``CheckpointError`` if the file has become shorter or is gone.
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
    """Return uint8 [nbytes] of the tensor's file, at an address that fits its type."""
    base = offset - offset % mmap.ALLOCATIONGRANULARITY
    skip = offset - base
    try:
        with open(open_regular(ref.path), "rb") as file:
            # torch requires writable buffers, and a copy-on-write mapping counts as one; it is never written
            pages = mmap.mmap(file.fileno(), skip + nbytes, access=mmap.ACCESS_COPY, offset=base)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        crowded = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        remedy = "allow more open files (ulimit -n)" if crowded else "download the file again"
        raise CheckpointError(f"{ref.path}: tensor {ref.name} cannot be read ({error}); {remedy}") from None
    pages.madvise(mmap.MADV_SEQUENTIAL)
    raw = torch.frombuffer(pages, dtype=torch.uint8, count=nbytes, offset=skip)
    return raw.clone() if skip % DTYPES[ref.dtype].itemsize else raw  # old files align nothing


class HashedTensor:
    """A raw tensor that is read once, from its first row to its last. ``expected``: the hash of its content, if known."""

    def __init__(self, ref: TensorRef, expected: bytes | None) -> None:
        self._ref, self._expected = ref, expected
        self._digest = begin_hash(ref.dtype, ref.shape)

    def read(self, first: int, last: int) -> torch.Tensor:
        """Return the rows that follow the last ones read. Raises the same errors as ``read_rows``."""
        rows = read_rows(self._ref, first, last)
        if self._expected is not None:
            self._digest.update(_content(rows))
        return rows

    def check(self) -> None:
        """Check the hash after all rows were read. Raises CheckpointError if it differs."""
        if self._expected is not None and self._digest.digest() != self._expected:
            raise TensorChanged(self._ref)


def read_delta(spec: ComponentSpec, delta: DeltaSpec, step: int) -> Generator[int, None, dict[str, torch.Tensor]]:
    """Read the tensors of a component's delta by role. Yield the bytes hashed in each step, at most ``step``.

    Raises CheckpointError if they differ from the ones that the id was made of.
    """
    tensors = {role: read_rows(ref, 0, ref.shape[0]) for role, ref in delta.tensors.items()}
    hashes = {}
    for role, tensor in tensors.items():
        digest, content = begin_hash(delta.tensors[role].dtype, delta.tensors[role].shape), _content(tensor)
        for first in range(0, content.nbytes, step):
            digest.update(content[first : first + step])
            yield min(step, content.nbytes - first)
        hashes[role] = digest.digest()
    if delta_id(spec.config, delta.config, hashes) != delta.id:
        raise TensorChanged(next(iter(delta.tensors.values())))
    return tensors


def _content(tensor: torch.Tensor) -> memoryview:
    content: memoryview = tensor.contiguous().view(torch.uint8).flatten().numpy().data
    return content


class TensorChanged(CheckpointError):
    """A tensor's bytes are not those of its hash. ``ref``: its place."""

    def __init__(self, ref: TensorRef) -> None:
        super().__init__(
            f"{ref.path}: tensor {ref.name} has changed since the model was added: its folder was overwritten; "
            "save models to new folders, and replace the application or restart"
        )
        self.ref = ref

"""Places of a checkpoint's tensors, from the headers of one safetensors file or of the shards that an index names.

Reads headers only and checks them against the sizes of the files. Standard library only.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import TypeGuard

from ..errors import CheckpointError
from ..model.config import TensorRef
from ..model.fields import LONGEST, Fields, named, parse, shown
from ..regular_file import open_regular

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
# Types that are read only to report that the checkpoint is quantized, or that are never needed.
OTHER_BYTES = {"F64": 8, "I64": 8, "I32": 4, "I16": 2, "U64": 8, "U32": 4, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
QUANTISED = ("I8", "U8", "I32", "F8_", "F4", "F6_")
POINTER = b"version "  # beginning of a file that git-lfs has not fetched; as a header's length it would be absurd
MOST_DIMENSIONS = 64
MOST_BYTES = 2**63 - 1  # largest offset


def read_tensors(folder: Path) -> dict[str, TensorRef]:
    """Return all tensors of the checkpoint in ``folder`` by name. Raises ``CheckpointError``."""
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise _no_safetensors(folder)
    index = Fields.read(folder / INDEX, LONGEST)
    weight_map = index.values.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index.source} has no weight_map of tensor names to files; download the checkpoint again")
    tensors: dict[str, TensorRef] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or not os.path.isfile(folder / shard):  # Path.is_file raises for long names
            raise CheckpointError(
                f"{folder} lacks the shard {named(shard)} that {INDEX} names; download the checkpoint again"
            )
        tensors.update(read_header(folder / shard))
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].path != str(folder / shard):
            raise CheckpointError(
                f"{folder / shard} lacks tensor {named(name)} that {INDEX} places there; download it again"
            )
    return tensors


def _no_safetensors(folder: Path) -> CheckpointError:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    if pickles:
        return CheckpointError(
            f"{folder} has its weights only as pickles ({len(pickles)} files, {pickles[0]} first), which are never loaded; "
            "load it with transformers and save_pretrained() it as safetensors"
        )
    if any(folder.glob("*.gguf")):
        return gguf(folder)
    return CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}; download the checkpoint's safetensors files")


def gguf(path: Path) -> CheckpointError:
    """Return the error for a GGUF file, or for a folder that holds one."""
    remedy = "name the folder of the model's safetensors checkpoint"
    if path.is_dir():
        return CheckpointError(f"{path} holds a GGUF file, which is not supported; {remedy}")
    return CheckpointError(f"{path} is a GGUF file, which is not supported; {remedy}")


def read_header(path: Path, limit: int = LONGEST) -> dict[str, TensorRef]:
    """Return the tensors of one safetensors file. Raises ``CheckpointError`` for a broken or truncated one.

    ``limit``: bytes of the header.
    """
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            raw = file.read(length) if length <= min(size, limit) else b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    if prefix == POINTER:
        raise CheckpointError(f"{path} is a pointer of git-lfs, not the weights; run 'git lfs pull' in {path.parent}")
    if limit < length <= size:
        raise CheckpointError(f"{path} has a header of {length} bytes, more than {limit}; save fewer tensors")
    if length == 0 or len(raw) != length:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({size} bytes, header of {length}); download it again"
        )
    try:
        header = parse(raw, unique=True)
        if not isinstance(header, dict):
            raise ValueError("it is no object")
        tensors = {name: _entry(path, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} has a broken header ({error}); download it again") from None
    end = max((t.offset + t.nbytes for t in tensors.values()), default=0)
    if end > size:
        raise CheckpointError(f"{path} is truncated: {size} bytes where its header says {end}; download it again")
    return tensors


def _entry(path: Path, name: str, entry: object, base: int) -> TensorRef:
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape = fields.get("shape")
    offsets = fields.get("data_offsets")
    if not (isinstance(dtype, str) and _sizes(shape) and _sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"tensor {named(name)} has no type, shape and place but {shown(entry)}")
    (begin, end), item = offsets, ITEM_BYTES.get(dtype) or OTHER_BYTES.get(dtype)
    if end < begin or (item and end - begin != math.prod(shape) * item):
        raise CheckpointError(
            f"{path}: tensor {named(name)} has {end - begin} bytes for shape {shown(shape)} of {named(dtype)}; "
            "download the file again"
        )
    return TensorRef(str(path), name, dtype, tuple(shape), base + begin, end - begin)


def _sizes(value: object) -> TypeGuard[list[int]]:
    """Return whether the value is a list of sizes or offsets, short enough to be multiplied quickly."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(n) is int and 0 <= n <= MOST_BYTES for n in value)
    )


def check_dtype(ref: TensorRef) -> None:
    """Refuse tensors that are not plain floats."""
    if ref.dtype in ITEM_BYTES:
        return
    if ref.dtype.startswith(QUANTISED):
        raise CheckpointError(
            f"{ref.path}: tensor {ref.name} is quantized ({named(ref.dtype)}), which is not supported; "
            "use the checkpoint in float32, bfloat16 or float16"
        )
    raise CheckpointError(
        f"{ref.path}: tensor {ref.name} is of type {named(ref.dtype)}, only {', '.join(ITEM_BYTES)} are supported; "
        "convert it"
    )

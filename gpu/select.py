"""Which back end computes: chosen once, when a worker starts."""

from __future__ import annotations

from typing import cast

from .backend import Backend
from .errors import BackendError

SETS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")  # of the native kernels, the best first
REMEDY = "install gcc and install blockwright again (pip install --force-reinstall --no-deps WHEEL_OR_CHECKOUT)"


def open_backend(name: str, dtype: str, threads: int, instruction_set: str = "") -> Backend:
    """``name`` "native", "torch" or "auto" (native where its library loads, else torch); ``dtype`` of the model;
    ``instruction_set``: native kernels of this one of ``SETS``, or of the next that exists here; "": the best.

    Raises ``BackendError`` for a back end that is not available here or that lacks the type.
    """
    if name not in ("auto", "native", "torch"):
        raise BackendError(f"back end {name!r} does not exist; choose auto, native or torch")
    if name != "torch":
        try:
            return _native(dtype, threads, instruction_set)
        except (ImportError, OSError, BackendError) as error:
            if name == "native":
                raise BackendError(f"the native back end does not load ({error}); choose torch or install gcc") from error
    from .reference.backend import TorchBackend

    return TorchBackend(dtype, threads)


def slow(name: str, backend: Backend, dtype: str, threads: int) -> str:
    """Why and what to do where ``backend`` is what "auto" falls back to; "" where all is as it was asked for."""
    if name != "auto" or backend.name == "native":
        return ""
    try:
        open_backend("native", dtype, threads)
    except BackendError as error:
        why = error.__cause__ or error
        remedy = "" if isinstance(why, BackendError) else f"; {REMEDY}"  # ours say theirs
        return f"the torch reference computes, several times slower than the native kernels: {why}{remedy}"
    return ""


def _native(dtype: str, threads: int, instruction_set: str) -> Backend:
    from .native.backend import NativeBackend

    for one in SETS[SETS.index(instruction_set) : -1] if instruction_set else ():
        try:
            return cast(Backend, NativeBackend(dtype, threads, one))
        except BackendError:
            continue  # not on this processor, or not for this type
    return cast(Backend, NativeBackend(dtype, threads, SETS[-1] if instruction_set else ""))

"""Which back end computes: chosen once, when a worker starts."""

from __future__ import annotations

from typing import cast

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import BackendError

REMEDY = "install gcc and install blockwright again (pip install --force-reinstall --no-deps blockwright)"


def open_backend(name: str, dtype: str, threads: int) -> Backend:
    """``name`` "native", "torch" or "auto" (native where its library loads, else torch); ``dtype`` of the model.

    Raises ``BackendError`` for a back end that is not available here or that lacks the type.
    """
    if name not in ("auto", "native", "torch"):
        raise BackendError(f"back end {name!r} does not exist; choose auto, native or torch")
    if name != "torch":
        try:
            from blockwright.gpu.native import NativeBackend

            return cast(Backend, NativeBackend(dtype, threads))
        except (ImportError, OSError, BackendError) as error:
            if name == "native":
                raise BackendError(f"the native back end does not load ({error}); choose torch or install gcc") from error
    from blockwright.gpu.torch_backend import TorchBackend

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

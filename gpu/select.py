"""Which back end computes: chosen once, when a worker starts."""

from __future__ import annotations

from typing import cast

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import BackendError


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

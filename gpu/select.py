"""Choice of the back end, made once when a worker starts: native kernels, or the torch reference without gcc; its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .backend import Backend, HostBackend
from .device import Device, DeviceSizes
from .errors import BackendError

if TYPE_CHECKING:
    from .cuda.prove import Prover

CARD = "cuda:"  # with the number of the card
HOST_CUDA = ("cuda-mirror", "cuda-interpreted")  # the CUDA back end without a card, for tests
FAST = "-fast-"  # in the numerics of products by a library
SETS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")  # instruction sets of the native kernels, best first
REMEDY = "install gcc and install blockwright again (pip install --force-reinstall --no-deps WHEEL_OR_CHECKOUT)"


def open_backend(name: str, dtype: str, threads: int, instruction_set: str = "", bits: str = "invariant") -> Backend:
    """Open a back end: "native", "torch" or "auto" (native if its library loads, else torch); "cuda:0" and so on is a card.

    ``dtype`` is the model's type. ``instruction_set`` is one of ``SETS`` for the native kernels; if it is not available
    here, the next one is used. "" means the best. ``bits`` "fast" has a library compute products, in an order that may
    depend on the batch, on a card alone. Raises ``BackendError`` if the back end is not available here or lacks the type.
    """
    if name in HOST_CUDA:
        from .cuda.platforms import open_interpreted, open_mirror

        return open_mirror(dtype, threads, bits=bits) if name == HOST_CUDA[0] else open_interpreted(dtype, threads)
    if name.startswith(CARD):
        from .cuda.platforms import open_card

        return open_card(int(name.removeprefix(CARD)), dtype, threads, bits)
    if bits != "invariant":
        raise BackendError(f"bits {bits!r} is of a card, and back end {name!r} of the CPU; leave it out")
    if name not in ("auto", "native", "torch"):
        raise BackendError(f"back end {name!r} does not exist; choose auto, native or torch")
    if name != "torch":
        try:
            return _native(dtype, threads, instruction_set)
        except (ImportError, OSError, BackendError) as error:
            if name == "native":
                raise BackendError(f"the native back end does not load ({error}); choose torch or install gcc") from error
    from .cpu.reference.backend import TorchBackend

    return TorchBackend(dtype, threads)


def open_device(backend: Backend, sizes: DeviceSizes) -> Device:
    """Open the device around a back end. Raises ``BackendError`` if there is no memory for its tables and scratch."""
    from .host_device import HostDevice

    if backend.name.startswith("cuda-"):
        from .cuda.backend import CudaBackend
        from .cuda.device import CudaDevice

        assert isinstance(backend, CudaBackend)
        return CudaDevice(backend, sizes)
    return HostDevice(cast(HostBackend, backend), sizes)


def open_prover(backend: Backend, limit: int) -> Prover | None:
    """Return the owner of a card's first launches and of the proofs of its bits (``cuda/prove.py``), None for a CPU.

    Each has at most ``limit`` tokens. Products in an order that promises nothing are not proved.
    """
    if not backend.name.startswith("cuda-"):
        return None
    from .cuda.backend import CudaBackend
    from .cuda.prove import ON_CARD, ON_HOST, Prover

    assert isinstance(backend, CudaBackend)
    size = ON_HOST if backend.name in HOST_CUDA else ON_CARD
    dtype = str(backend.dtype).removeprefix("torch.")
    compares = FAST not in backend.numerics
    return Prover(lambda: cast(Backend, CudaBackend(backend.platform, dtype)), size, limit, compares=compares)


def slow(name: str, backend: Backend, dtype: str, threads: int) -> str:
    """Return why a worker computes slowly, and the remedy; "" if it does not.

    That is where "auto" fell back to the slower back end, and on a device that is for tests.
    """
    if backend.name in HOST_CUDA:
        return f"{backend.name} is the CUDA back end without a card, very slow and for tests alone; choose device cpu"
    if name != "auto" or backend.name == "native":
        return ""
    try:
        open_backend("native", dtype, threads)
    except BackendError as error:
        why = error.__cause__ or error
        remedy = "" if isinstance(why, BackendError) else f"; {REMEDY}"  # our own errors name their remedy
        return f"the torch reference computes, several times slower than the native kernels: {why}{remedy}"
    return ""


def _native(dtype: str, threads: int, instruction_set: str) -> Backend:
    from .cpu.native.backend import NativeBackend

    for one in SETS[SETS.index(instruction_set) : -1] if instruction_set else ():
        try:
            return cast(Backend, NativeBackend(dtype, threads, one))
        except BackendError:
            continue  # not on this processor, or not for this type
    return cast(Backend, NativeBackend(dtype, threads, SETS[-1] if instruction_set else ""))

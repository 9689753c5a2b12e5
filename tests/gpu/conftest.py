"""Back ends that exist on this machine, as fixtures: every conformance test runs on each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import BackendError
from blockwright.gpu.select import open_backend


def available() -> list[str]:
    try:
        open_backend("native", "float32", 1)
    except BackendError:
        return ["torch"]
    return ["torch", "native"]


@pytest.fixture(params=available())
def make_backend(request: pytest.FixtureRequest) -> Callable[..., Backend]:
    """``make_backend(dtype="float32")``: a fresh back end of one thread."""

    def make(dtype: str = "float32") -> Backend:
        return open_backend(request.param, dtype, 1)

    return make

"""torch for a process that only computes: imported without what tracing alone needs.

The last thing that ``import torch`` runs is ``torch._meta_registrations``: functions in Python that say which shape a result
will have. With what they bring along they take a quarter of the import (0.4 of 1.8 s of one core) and 17 MB, and only meta
tensors, ``torch.compile`` and ``torch.export`` ask them. A worker asks for none of it, and every start waits for a worker.

Importing this module imports torch, unless somebody has, with an empty module in that one's place. The real one comes as
soon as something is imported that traces (``TRACING``), or an attribute of it is asked for. Until then operators refuse
meta tensors (NotImplementedError) if they know a result's shape by such a function alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEFT_OUT = "torch._meta_registrations"
TRACING = frozenset(("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor"))


class _Empty(ModuleType):
    """In the place of the module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of all modules in turn, by ``inspect``
            raise AttributeError(name)
        return getattr(_complete(), name)


class _Tracing(MetaPathFinder):
    """Finds nothing: sees what is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in TRACING:
            _complete()
        return None


def _complete() -> ModuleType:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Tracing)]
    if isinstance(sys.modules.get(LEFT_OUT), _Empty):
        del sys.modules[LEFT_OUT]
    return import_module(LEFT_OUT)


if "torch" not in sys.modules:
    sys.modules[LEFT_OUT] = _Empty(LEFT_OUT)
    sys.meta_path.insert(0, _Tracing())
    import_module("torch")

"""Blockwright serves many language models from shared blocks. Every model is a chain of blocks.

Importing this loads nothing heavy; each name below is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.program.client import Client
    from .api.program.embedded import Cluster
    from .api.program.generate import generate
    from .api.program.results import Answer, Choice, Piece, RequestError

__all__ = ["Answer", "Choice", "Client", "Cluster", "Piece", "RequestError", "generate"]

_HOMES = {
    "Answer": "results",
    "Choice": "results",
    "Client": "client",
    "Cluster": "embedded",
    "Piece": "results",
    "RequestError": "results",
    "generate": "generate",
}

if not TYPE_CHECKING:  # to which it would say that there is a name for everything

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'blockwright' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(import_module(f"blockwright.api.program.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

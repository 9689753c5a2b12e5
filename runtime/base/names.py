"""Import names: how a class or function travels to another process, as ``module:Qualname``.

Owns the import on the other side, too, during which no program may be started.
"""

from __future__ import annotations

import importlib
import sys
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

_importing: ContextVar[str] = ContextVar("importing", default="")


def import_name(thing: Any) -> str:
    """Return ``module:Qualname``. Raises ValueError for an object that another process cannot import.

    What stands in a script that is being run is found by the script's file name: other processes search the same folders.
    """
    module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or path is None:
        raise ValueError(f"{thing!r} is neither a class nor a function of a module; give one, or its import name")
    if module == "__main__":
        module = _script() or module
    if module == "__main__" or "<locals>" in path:
        raise ValueError(f"{module}:{path} cannot be imported by another process; move it to the top of a module")
    return f"{module}:{path}"


def import_module(name: str) -> ModuleType:
    """Import the module on behalf of another process. No program can be started while that lasts."""
    token = _importing.set(name)
    try:
        return importlib.import_module(name)
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Refuse to start programs or processes while a worker imports a script.

    A script without a guard, imported by a worker to find an actor's class, would start workers that import it, for ever.
    Raises RuntimeError.
    """
    if name := _importing.get():
        raise RuntimeError(
            f"another process imports {name} to find what it defines, and {name} starts a program while it is imported; "
            'put what it runs below: if __name__ == "__main__":'
        )


def _script() -> str:
    """Module name of the script that runs; empty where it has none (a notebook, ``python -c``)."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        name: str = spec.name
        return name
    file = getattr(main, "__file__", None)
    if file is None:
        return ""
    script = Path(file).resolve()
    found = (
        script.suffix == ".py"
        and script.stem.isidentifier()
        and str(script.parent) in {str(Path(p).resolve()) for p in sys.path}
    )
    return script.stem if found else ""

"""By which name another process imports a class or function of this one. Nothing of theirs travels but the name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def import_name(thing: Any) -> str:
    """``module:Qualname``. Raises ValueError for what another process cannot import.

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

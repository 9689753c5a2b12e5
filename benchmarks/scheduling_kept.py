"""A store of simulation results, written as they end, so that an interrupted benchmark continues where it was.

It is a file of JSON lines; a line is the result of one call. A line counts as long as the sources that determine the outcome
are the same (``fingerprint``). Several processes may write to one file at a time; an incomplete line is ignored.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

P = ParamSpec("P")
Figures = dict[str, Any]  # as JSON has it


class Kept:
    """What is known by now. ``sources``: the fingerprint of lines that count."""

    def __init__(self, path: Path, sources: str) -> None:
        self._path, self._sources = path, sources
        self._known: dict[str, Figures] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if found["sources"] == sources:
                self._known[found["what"]] = found["found"]
        path.parent.mkdir(parents=True, exist_ok=True)

    def __contains__(self, what: str) -> bool:
        return what in self._known

    def of(self, what: str, measure: Callable[[], Figures]) -> Figures:
        """What is known, or else is measured and kept."""
        if what not in self._known:
            began = time.process_time()
            found = measure()
            took = round(time.process_time() - began, 2)
            line = {"what": what, "seconds": took, "sources": self._sources, "found": found}
            with self._path.open("a") as target:
                target.write(f"\n{json.dumps(line)}\n")  # begins a line also after one that was cut off
            self._known[what] = found
        return self._known[what]


_places: list[Kept] = []  # of this process: none or one


def keep(path: Path, sources: str) -> None:
    """From now on this process keeps what functions that are ``kept`` come to."""
    _places[:] = [Kept(path, sources)]


def kept(function: Callable[P, Figures]) -> Callable[P, Figures]:
    """Of a function of values whose ``repr`` says all that its outcome depends on."""

    @wraps(function)
    def known(*args: P.args, **kwargs: P.kwargs) -> Figures:
        if not _places:
            return function(*args, **kwargs)
        return _places[0].of(f"{function.__name__} {args} {kwargs or ''}".strip(), lambda: function(*args, **kwargs))

    return known


def fingerprint(paths: Iterable[Path]) -> str:
    """Of the contents of files, and of the Python files of folders, by name."""
    found = hashlib.blake2b(digest_size=12)
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(f"{file.name} {hashlib.blake2b(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()

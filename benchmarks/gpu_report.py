"""Rows of ``gpu.py``: what a part measured, and a row that says so where it failed or measures what is not built yet.

A part gets a ``Part``, adds figures to it, and wraps each of its cases in ``attempt``: a case that fails is a row with the
last line of the error, and the next case runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import harness
from gpu_card import Card, NotBuilt, NotMeasured
from gpu_sizes import Sizes
from harness import OURS, Bar, Report

FAILED = "failed"
NOT_BUILT = "not built"
NOT_HERE = "not here"
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-bindings", "nvidia-ml-py", "transformers", "vllm")
LAST_LINES = 12  # of a traceback that is printed, so that a minute on a card tells enough


class NotHere(Exception):
    """Error for a part that needs something which this machine lacks; the text names it."""


@dataclass(frozen=True, slots=True)
class State:
    """A case without figures, and why."""

    part: str
    case: str
    state: str
    why: str


@dataclass(slots=True)
class Part:
    """Rows of one part of the report, with what the part needs: the card, its sizes, earlier figures."""

    name: str
    card: Card
    sizes: Sizes
    report: Report
    states: list[State]
    bars: list[Bar] = field(default_factory=list)
    bundle: set[tuple[str, str, str]] = field(default_factory=set)  # the series that this part has added

    def add(self, case: str, metrics: Mapping[str, float], subject: str = OURS) -> None:
        """Add one run's figures of a case; the part's name comes before it."""
        name = f"{self.name}/{case}"
        self.report.add(name, subject, metrics)
        self.bundle |= {(name, metric, subject) for metric in metrics}

    def bar(self, case: str, metric: str, *, at_least: float = 0.0, at_most: float = float("inf"), peer: str = "") -> None:
        """Name what a figure of this part has to reach."""
        self.bars.append(Bar(f"{self.name}/{case}", metric, peer, at_least, at_most))

    def found(self, case: str, metric: str, subject: str = OURS) -> float | None:
        """Return a figure of this part or of an earlier one (``part/case``), None if it was not measured."""
        return self.report.median(case, metric, subject)

    def note(self, case: str, state: str, why: str) -> None:
        self.states.append(State(self.name, case, state, why))

    @contextmanager
    def attempt(self, case: str) -> Iterator[None]:
        """Run a case. An error is a row, not the end."""
        try:
            yield
        except NotBuilt as error:
            self.note(case, NOT_BUILT, str(error))
        except NotMeasured as error:
            self.note(case, NOT_MEASURED, str(error))
        except NotHere as error:
            self.note(case, NOT_HERE, str(error))
        except Exception as error:
            print("\n".join(traceback.format_exc().splitlines()[-LAST_LINES:]), flush=True)
            lines = [line for line in str(error).splitlines() if line.strip()]
            self.note(case, FAILED, f"{type(error).__name__}: {lines[-1].strip() if lines else 'without a text'}")

    def show(self) -> None:
        """Print the rows and states of this part, and the bars that it missed; on the mirror no bar is judged."""
        some = Report(self.report.benchmark, {}, ())
        some.samples = {key: values for key, values in self.report.samples.items() if key in self.bundle}
        print(harness.table(some))
        for state in self.states:
            if state.part == self.name:
                print(f"{state.state.upper()}  {state.part}/{state.case}: {state.why}")
        for sentence in [] if self.card.mirrored else harness.misses(self.report, self.bars):
            print(f"MISS  {sentence}")


def document(report: Report, card: Card, states: list[State]) -> dict[str, Any]:
    """Return what is stored after each part; the rows of a mirror say that they are no figures of a card."""
    found = report.document()
    found["machine"]["gpu"] = card.name
    found["settings"] |= {
        "states": [{"part": s.part, "case": s.case, "state": s.state, "why": s.why} for s in states],
        "driver": _driver(),
    }
    return found


def _driver() -> str:
    try:
        return metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError:
        return "no cuda-bindings"

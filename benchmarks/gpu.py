"""The CUDA back end on a card, in one command of less than 9 minutes; without a card, every line of it on the mirror.

    python benchmarks/gpu.py [--quick] [--only PART ...] [--sanitize] [--json PATH] [--device cuda|cuda-mirror]

Parts: ceilings, kernels, bits, equality, speed, peers, deltas, memory, workers, nvml. Each is printed, and the JSON written,
as soon as it has ended. A case that fails is a row with the error's last line; what is not built yet is a row that says so.
Bars are shares of the ceilings of the same run, and a miss is printed as a miss. Nothing has to be installed but pyzmq: the
checkout is its own package, and Triton's cache is a private folder.

On the mirror (the default where torch finds no card) sizes are tiny and no bar is judged. Its figures say nothing about any
card, and are refused as a stored result.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from harness import ROOT, Report

CARD, MIRROR = "cuda", "cuda-mirror"
PARTS = ("ceilings", "kernels", "bits", "equality", "speed", "peers", "deltas", "memory", "workers", "nvml")
SANITIZED = ("kernels", "bits")  # by memory and race checks, which make everything a hundred times slower
LIMIT = 520.0  # seconds after which no further part begins
RESULTS = ROOT / "benchmarks" / "results"


def prepare() -> None:
    """Make the checkout importable as ``blockwright`` where it is not installed, and give Triton a private cache."""
    private = Path(tempfile.gettempdir()) / f"blockwright-gpu-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("TRITON_CACHE_DIR", str(private / "triton"))
    if importlib.util.find_spec("blockwright") is None:
        link = private / "packages" / "blockwright"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT)
        sys.path.insert(0, str(link.parent))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(link.parent), os.environ.get("PYTHONPATH")]))


def measure(device: str, chosen: Sequence[str], sizes_name: str, path: Path | None) -> Any:
    """Run the parts, and return their document. Each is printed and stored when it has ended."""
    from gpu_card import open_card
    from gpu_compile import prepare as compile_all
    from gpu_report import NOT_RUN, PACKAGES, Part, State, document
    from gpu_sizes import SIZES

    began = time.monotonic()
    card, sizes = open_card(device), SIZES[sizes_name]
    print(f"device {device}: {card.name}; commit {harness.commit()}", flush=True)
    report = Report("gpu", {"device": device, "sizes": sizes_name, "figures": card.name}, PACKAGES)
    states: list[State] = []
    compile_all(device, sizes_name)
    for name in chosen:
        since = time.monotonic()
        part = Part(name, card, sizes, report, states)
        print(f"\n== {name}", flush=True)
        if since - began > LIMIT:
            part.note("all", NOT_RUN, f"{LIMIT:.0f} s were over before it")
        else:
            with part.attempt("all"):
                importlib.import_module(f"gpu_{name}").measure(part)
        with part.attempt("release"):
            card.release()
        part.add("all", {"seconds": time.monotonic() - since})
        part.show()
        print(f"== {name}: {time.monotonic() - since:.0f} s, {time.monotonic() - began:.0f} s in all", flush=True)
        if path is not None:
            path.write_text(json.dumps(document(report, card, states), indent=1) + "\n")
    return document(report, card, states)


def sanitize(parts: Sequence[str]) -> int:
    """Run these parts under compute-sanitizer, and return its exit code."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise SystemExit("--sanitize needs compute-sanitizer, which comes with CUDA's toolkit; add its bin folder to PATH")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "1", sys.executable, str(Path(__file__).resolve())]
    return subprocess.run([*command, "--quick", "--only", *parts], check=False).returncode


def main(arguments: Sequence[str] | None = None) -> Any:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="just these")
    parser.add_argument("--sanitize", action="store_true", help="the kernels under compute-sanitizer instead")
    parser.add_argument("--device", choices=(CARD, MIRROR), help="the card, or its mirror (the card where there is one)")
    chosen = parser.parse_args(arguments)
    prepare()
    if chosen.device is None:
        import torch

        chosen.device = CARD if torch.cuda.is_available() else MIRROR
    if chosen.sanitize:
        if chosen.device == MIRROR:
            parser.error("--sanitize needs a card; here is none")
        if chosen.json is not None or not set(chosen.only or ()) <= set(SANITIZED):
            parser.error(
                f"--sanitize runs {' and '.join(SANITIZED)}, and keeps no figures; leave other parts and --json out"
            )
        return sanitize(chosen.only or SANITIZED)
    if chosen.json is not None and not chosen.json.resolve().parent.is_dir():
        parser.error(f"--json {chosen.json} is in a folder that does not exist; make it, or give another path")
    if chosen.device == MIRROR and chosen.json is not None and chosen.json.resolve().parent == RESULTS:
        parser.error(
            f"figures of the mirror are no figures of a card, and {RESULTS.name}/ keeps figures; give another --json"
        )
    sizes = "tiny" if chosen.device == MIRROR else "quick" if chosen.quick else "whole"
    measure(chosen.device, [part for part in PARTS if part in (chosen.only or PARTS)], sizes, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

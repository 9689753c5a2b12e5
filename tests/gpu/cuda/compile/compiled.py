"""What Triton makes of a launch for an H100, without a card or a driver: registers, spills, shared memory, instructions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
DUMP = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"


@dataclass(slots=True)
class Launches:
    """Launches that were recorded instead of made: each kernel with its keywords, once."""

    found: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def runner(self) -> Callable[..., None]:
        def run(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **keywords: Any) -> None:
            assert all(n >= 1 for n in grid), f"{kernel.__name__} is launched with an empty grid {grid}"
            if (kernel, keywords) not in self.found:
                self.found.append((kernel, keywords))

        return run


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine code of a launch."""

    kernel: str
    registers: int
    stack: int  # bytes of a thread: spills
    shared: int  # bytes of a program
    wgmma: bool
    mma_sync: bool
    copies: bool  # asynchronous ones, to shared memory


def compiled(kernel: JITFunction[Any], keywords: dict[str, Any], folder: Path) -> Machine:
    """Compile a launch as it would be on a card: what is no constexpr has the type of its annotation, and no other trait."""
    signature = {p.name: "constexpr" if p.is_constexpr else p.annotation_type for p in kernel.params}
    assert all(signature.values()), f"{kernel.__name__} has arguments without a type: {signature}"
    free = {p.name for p in kernel.params if not p.is_constexpr and not p.annotation_type.startswith("fp")}
    assert free == set(kernel.do_not_specialize or ()), f"{kernel.__name__} is specialised by {free}"
    constants = {(p.num,): keywords[p.name] for p in kernel.params if p.is_constexpr}
    options = {name: value for name, value in keywords.items() if name not in signature}
    done = triton.compile(ASTSource(kernel, signature, constants, {}), target=TARGET, options=options)
    cubin = folder / "cubin"
    cubin.write_bytes(done.asm["cubin"])
    said = subprocess.run([DUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    ptx = done.asm["ptx"]
    return Machine(
        kernel=kernel.__name__,
        registers=int(found[1]),
        stack=int(found[2]),
        shared=done.metadata.shared,
        wgmma="wgmma.mma_async" in ptx,
        mma_sync="mma.sync" in ptx,
        copies="cp.async.c" in ptx,
    )

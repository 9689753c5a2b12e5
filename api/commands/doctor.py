"""The commands about this installation: its version, and whether this machine can serve, and with which kernels.

A check only looks; it changes nothing. Status "failed" means that something will not work, "warning" that it will work
badly. Both come with a remedy.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...policies.binary_size import binary_size
from .check import FAILED, OK, WARNING, Check
from .output import print_json

if TYPE_CHECKING:
    from ...gpu.cuda.nvml import Card, Nvml
    from ...gpu.cuda.probe import HostParts

CHECKOUT = Path(__file__).parents[2]  # the package, or the repository if that is imported
SETS = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
LEAST_MEMORY = 256 << 20  # bytes; less cannot hold a model and its KV
LEAST_SHARED = 64 << 20  # bytes: the default of containers, enough for the links of a few workers
LEAST_FILES = 1024
ANSWER = 2.0  # seconds that a server has to show its workers
DRIVER = Path("/proc/driver/nvidia/version")  # there with the driver for cards


def version_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


def version(arguments: argparse.Namespace) -> int:
    """Print the version of the installed package."""
    print(f"blockwright {release()}")
    return 0


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="port that a server would use (8000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--join", metavar="WHERE", help="check instead whether this machine can join a server, with a join text (or @FILE)"
    )


def port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"is {text}; give a number from 1 to 65535")
    return number


def doctor(arguments: argparse.Namespace) -> int:
    """Check whether this machine can serve, and which kernels would run. Each problem
    comes with a fix.

    With --join it checks what a worker or gateway here needs to join a server: the
    join text, the way to the head and back, the key, the release, the clock, and
    the port of a gateway. For that it joins for a moment.

    The exit code is 1 if something will not work.
    """
    checks = []
    for check in examine(arguments.port) if arguments.join is None else _examine_join(arguments.join, arguments.port):
        checks.append(check)
        if not arguments.json:
            print(f"{check.status:>7}  {check.name}: {check.text}", flush=True)
            if check.status != OK:
                print(f"{'':7}  -> {check.fix}")
    works = all(check.status != FAILED for check in checks)
    if arguments.json:
        body = {"version": release(), "works": works, "checks": [dataclasses.asdict(check) for check in checks]}
        print_json(body)
    return 0 if works else 1


def examine(port: int) -> Iterator[Check]:
    """Yield all checks, in the order in which a person would ask. ``port``: the port that a server would use."""
    import resource
    import tempfile

    from ...actors.resources import free_memory

    looks: tuple[Callable[[], Check], ...] = (check_python, check_torch, check_instructions)
    for look in looks:
        yield look()
    for dtype in ("float32", "bfloat16"):
        yield check_numerics(dtype)
    yield check_scheduler()
    yield check_cores()
    yield check_speed()
    yield check_memory(free_memory())
    yield check_shared_memory(Path("/dev/shm"))
    yield check_sockets(Path(tempfile.gettempdir()))
    yield check_port(port)
    yield from check_workers(port)
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_encryption()
    yield from check_cards()


def _examine_join(where: str, port: int) -> Iterator[Check]:
    """Yield the checks of this machine that a process which joins needs, then those of its way to the head."""
    import resource

    from .join_checks import examine_join

    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    encryption = check_encryption()
    yield encryption
    if encryption.status != FAILED:
        yield from examine_join(where, lambda: check_port(port))


def check_python() -> Check:
    import platform

    found = f"{platform.python_version()} ({platform.python_implementation()}, {sys.platform}, {platform.machine()})"
    if sys.platform != "linux":
        return Check("python", FAILED, found, "run it on Linux, for instance in a container: workers are forked there")
    return Check("python", OK, found)


def check_torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        fix = "install it again: pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"
        return Check("torch", FAILED, f"cannot be imported ({error})", fix)
    build = "CUDA " + torch.version.cuda if torch.version.cuda else "CPU build"
    return Check("torch", OK, f"{torch.__version__} ({build}, {torch.get_num_threads()} threads by default)")


def check_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> Check:
    import platform

    try:
        text = cpuinfo.read_text()
    except OSError as error:
        return Check("instruction sets", WARNING, f"{cpuinfo} cannot be read ({error.strerror})", "mount /proc")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)).split())
    found = f"{name[1] if name else platform.machine()}: {' '.join(s for s in SETS if s in flags) or 'none that is used'}"
    if flags and not flags & {"avx2", "asimd"}:
        fix = "nothing to do, but a processor with AVX2 or AVX-512 is several times faster"
        return Check("instruction sets", WARNING, found, fix)
    return Check("instruction sets", OK, found)


def check_numerics(dtype: str) -> Check:
    """Check which kernels compute checkpoints of this type; the choice is the worker's own."""
    name = f"numerics, {dtype}"
    try:
        from ...gpu.select import REMEDY, open_backend

        backend = open_backend("auto", dtype, 1)
    except Exception as error:  # whatever the error, no worker will start
        return Check(name, FAILED, f"no back end ({error})", "install torch again, or see what the line about it says")
    if backend.name == "native":
        return Check(name, OK, f"{backend.numerics} on the CPU (native kernels; bits do not depend on the batch)")
    try:
        open_backend("native", dtype, 1)
        why = "the native kernels do not load"
    except Exception as error:
        why = str(error.__cause__ or error)
    text = f"{backend.numerics} (the torch reference, several times slower: {why})"
    return Check(name, WARNING, text, REMEDY)


def check_scheduler() -> Check:
    """Check if the policies run compiled by mypyc or as Python sources.

    Sources are right for a first look in a checkout (``make demo``) and in development. An installed server should have the
    compiled form.
    """
    from ...policies import COMPILED

    if COMPILED:
        return Check("scheduler", OK, "compiled")
    said = "interpreted, so planning a step takes twice as long"
    if os.environ.get("BLOCKWRIGHT_COMPILED") == "0":
        return Check("scheduler", WARNING, said, "unset BLOCKWRIGHT_COMPILED")
    if (CHECKOUT / "Makefile").exists():
        return Check("scheduler", OK, f"{said}; that is enough to try it, and 'make setup' here compiles it for a server")
    return Check("scheduler", WARNING, said, "install it again, with a C compiler or for a Python that its wheel names")


def check_cores() -> Check:
    from ...actors.resources import cores

    usable, all_of_them = cores(), os.cpu_count() or 1
    text = f"{usable} of {all_of_them}" + (" (affinity or a control group's quota)" if usable < all_of_them else "")
    if usable < 2:
        return Check("cores", WARNING, text, "give the container at least 2 cores: one is shared by gateway and kernels")
    return Check("cores", OK, text)


def check_speed() -> Check:
    """Measure what a worker here reports when it joins."""
    try:
        from ...gpu.speed import measure_speed
    except (ImportError, OSError):
        return Check("speed", FAILED, "cannot be measured without torch", "install torch, see above")

    found = measure_speed("cpu", 1)
    text = f"a thread reads {found.bandwidth / 1e9:.1f} GB and makes {found.products / 1e9:.0f} billion products a second"
    return Check("speed", OK, text)


def check_memory(free: int) -> Check:
    text = (
        f"{free / (1 << 30):.1f} GiB free (within the container's limits); workers take 60 % of it unless --set memory=..."
    )
    if free < LEAST_MEMORY:
        return Check("memory", FAILED, text, "end other programs, or raise the container's limit (docker run --memory 4g)")
    return Check("memory", OK, text)


def check_shared_memory(folder: Path) -> Check:
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="blockwright-doctor-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            "shared memory", FAILED, f"{folder}: {error.strerror}", f"mount a tmpfs at {folder} that you may write to"
        )
    text = f"{binary_size(free)} free in {folder}"
    if free < LEAST_SHARED:
        return Check("shared memory", WARNING, text, "give the container more: docker run --shm-size 1g")
    return Check("shared memory", OK, text)


def check_sockets(folder: Path) -> Check:
    """Check that sockets can be made. Workers and head use a private directory below ``folder`` for them."""
    import socket
    import tempfile

    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="blockwright-") as home, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(os.path.join(home, "worker-w0-1.sock"))
    except OSError as error:
        where = f"{folder}: {error.strerror or error}"
        return Check("sockets", FAILED, where, "set TMPDIR to a short path on a local file system that you may write to")
    return Check("sockets", OK, f"can be made in {folder}")


def check_port(port: int) -> Check:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"127.0.0.1:{port}: {error.strerror}"
            if error.errno == errno.EACCES:
                return Check("port", FAILED, text, "choose a port above 1023: --port 8000")
            return Check(
                "port", FAILED, text, f"end what listens there (see: ss -ltnp), or choose another: --port {port + 1}"
            )
    return Check("port", OK, f"127.0.0.1:{port} is free")


def check_workers(port: int) -> Iterator[Check]:
    """Show what each worker reported to the server that listens on the port, if it is one of ours and shows it."""
    import http.client

    from .observe import reported_lines

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER)
    try:
        connection.request("GET", "/admin/cluster")
        workers = json.loads(connection.getresponse().read())["workers"]
        lines = reported_lines({"id": one["id"], "reported": one["reported"]} for one in workers)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return  # there is no server, or another program, or it wants a key
    finally:
        connection.close()
    for line in lines:
        yield Check("workers", OK, line)


def check_files(limit: int) -> Check:
    if 0 <= limit < LEAST_FILES:
        return Check(
            "open files", WARNING, f"at most {limit}", f"raise the limit, one is used by each client: ulimit -n {65536}"
        )
    return Check("open files", OK, f"at most {limit:,}" if limit >= 0 else "no limit")


def check_encryption() -> Check:
    try:
        import zmq
    except ImportError as error:
        return Check("messages", FAILED, f"pyzmq cannot be imported ({error})", "install it again: pip install pyzmq")
    text = f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"
    if not zmq.has("curve"):
        return Check("messages", WARNING, f"{text}, without CURVE", "install pyzmq's own wheel to use several machines")
    return Check("messages", OK, f"{text}, with CURVE")


def check_cards(nvml: Nvml | None = None, driver: Path = DRIVER, host: HostParts | None = None) -> Iterator[Check]:
    """Check the cards, and whether workers could compute there; one line for each.

    Where there is neither a driver nor a card this is no problem: serving uses the CPU unless a card is asked for.
    """
    from ...gpu.cuda.footprint import CONTEXT
    from ...gpu.cuda.probe import look_at_host, obstacle, read_cards
    from ...gpu.errors import BackendError

    try:
        cards = read_cards(nvml)
    except BackendError as error:
        if driver.exists():
            yield _obstructed("gpu", "", str(error))
        else:
            yield Check("gpu", OK, f"none, serving uses the CPU ({str(error).partition('; ')[0]})")
        return
    parts = host or look_at_host()
    missing = parts.obstacle()
    for card in cards:
        name, found = f"gpu {card.number}", card_line(card)
        if why := obstacle(card) or parts.hides(card):
            yield _obstructed(name, found, why)
        elif missing:
            yield _obstructed(name, found, missing)
        else:
            beside = f"each worker takes {binary_size(CONTEXT)} beside its memory, and what its models' shapes need"
            yield Check(name, OK, f"{found} (serve with --device cuda:{card.number}; {beside}; not yet proved on a card)")


def card_line(card: Card) -> str:
    """Return what a card is and does, as far as it says."""
    said = [f"{card.name}, driver {card.driver}, compute capability {'.'.join(map(str, card.capability))}"]
    said.append(f"{binary_size(card.free)} of {binary_size(card.total)} free")
    if card.processes:
        said.append(f"used by process{'es' * (len(card.processes) > 1)} {', '.join(str(one.pid) for one in card.processes)}")
    if card.use is not None:
        said.append(f"{card.use:.0%} busy")
    if card.power is not None and card.power_limit is not None:
        said.append(f"{card.power:.0f} of {card.power_limit:.0f} W")
    if card.clock is not None and card.clock_limit is not None:
        said.append(f"{card.clock} of {card.clock_limit} MHz")
    if card.throttled:
        said.append(f"held down by {' and '.join(card.throttled)}")
    if card.ecc is not None:
        said.append(f"ECC {'on' if card.ecc else 'off'}" + (f", {card.errors} errors not corrected" if card.errors else ""))
    return ", ".join([*said, *(["MIG on"] * card.mig)])


def _obstructed(name: str, found: str, why: str) -> Check:
    """Return a warning from a sentence that ends with its remedy."""
    problem, _, remedy = why.partition("; ")
    return Check(name, WARNING, f"{found}; {problem}" if found else problem, remedy)


def release() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("blockwright")
    except PackageNotFoundError:
        return "not installed"

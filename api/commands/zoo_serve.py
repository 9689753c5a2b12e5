"""The command ``zoo serve``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from . import CommandError
from .zoo import folder, zoo_refusals

LOCAL = ("127.0.0.1", "localhost", "::1")


def zoo_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=folder, help="the zoo")
    parser.add_argument("--port", type=int, required=True, metavar="N", help="port to listen on (0: any free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")


def zoo_serve(arguments: argparse.Namespace) -> int:
    """Give the files of a zoo to workers on other machines, over HTTP with ranges,
    until you stop it.

    Servers and workers read from there what no folder of theirs has, if the server
    is started with --set origin=http://HOST:PORT. They compare everything with its
    hash. All who reach the port can read all models of the zoo.
    """
    from ...runtime.base.loop import run as run_loop
    from ...zoo.zoo import Zoo

    if not 0 <= arguments.port <= 65535:
        raise CommandError(f"--port is {arguments.port}; give 1 to 65535, or 0 for any free one", 2)
    with zoo_refusals():
        names = Zoo(arguments.folder).names()
    return run_loop(_serve(arguments.folder, names, arguments.host, arguments.port))


async def _serve(root: Path, names: list[str], host: str, port: int) -> int:
    from ...policies.binary_size import binary_size
    from ..http.zoo_files import ZooFiles, open_files

    files, ended = ZooFiles(root), asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        runner, address = await open_files(files, host, port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise CommandError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port", 2) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        if host not in LOCAL:
            print(f"warning: all who reach {host} can read these models; limit who does", flush=True)
        what = "1 application" if len(names) == 1 else f"{len(names)} applications"
        print(f"zoo {root}: {what} at {address}", flush=True)
        await ended.wait()
    finally:
        await runner.cleanup()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    print(f"sent {binary_size(files.sent)} ({files.sent} bytes)", flush=True)
    return 0

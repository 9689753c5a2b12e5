"""Pages of the documentation as something that can be run: their fenced code blocks, in order, in a folder of somebody else.

A block's first line says what it is:

    ```python              run by an interpreter of its own; it must end with exit code 0
    ```python file=NAME    written to that file of the page's folder
    ```sh                  run by bash, which stops at the first failure
    ```sh fails            run by bash, too, and the failure of its last command is what the page shows
    ```sh server           started and left running; what follows begins when it has said "ready at"
    ```toml | json | yaml  must be readable as that; ``file=NAME`` writes it, too
    ```ini                 a unit of systemd, whose ExecStart is a command line that the command accepts
    ```dockerfile          the repository's file of that name, whose entry is one, too, and whose files exist
    ```text output         what the block above must print, where ``...`` stands for anything
    ```text                other output, or what is not code
    ... tested=PATH        run by that test instead

The folder holds ``examples`` of the repository; port 8000 stands for a free one, also where a command means it by saying
nothing. A page shows what its reader will see, and that is checked; it need not assert anything itself.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import command_of, make_parser
from blockwright.tests.waiting import PATIENCE, until_now

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```([a-z]*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "toml", "json", "yaml", "text", "ini", "dockerfile"}
LISTENING = re.compile(r"\bblockwright (serve|doctor)\b")
ASKING = re.compile(r"\bblockwright (ps|top|explain|bench serve|apps add|apps remove)\b")
MEASURING = re.compile(r"\bblockwright profile\b")
TALKING = re.compile(r"\bblockwright (chat|complete)\b(?! +[^-\s])")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    words: tuple[str, ...]  # what follows the language
    text: str
    line: int  # of the page

    def _named(self, key: str) -> str:
        return next((word.removeprefix(key) for word in self.words if word.startswith(key)), "")

    @property
    def file(self) -> str:
        return self._named("file=")

    @property
    def tested(self) -> str:
        return self._named("tested=")


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page's text."""
    return [
        Block(found[1], tuple(found[2].split()), found[3], page.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(page)
    ]


def elsewhere(text: str, port: str) -> str:
    """The same with another port than 8000, said to commands of ours that would take it by default; and measured as
    shortly as can be."""
    text = LISTENING.sub(rf"blockwright \1 --port {port}", text.replace("8000", port))
    text = MEASURING.sub("blockwright profile --repeats 4", text)
    text = ASKING.sub(rf"blockwright \1 --url http://127.0.0.1:{port}", text)  # another one further on in the line wins
    return TALKING.sub(rf"blockwright \1 http://127.0.0.1:{port}", text)


def prints(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed. ``...`` stands for anything within a line, alone on a line for any lines;
    spaces at the ends of lines do not count."""
    pattern = ""
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.fullmatch(pattern, printed.rstrip() + "\n") is not None


def free_port() -> int:
    """Below those that the system gives to connections, so that it is still free when a server comes to ask for it."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(min(first, 20_000) // 2, max(first, 20_000)), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def read_unit(text: str) -> None:
    """A unit of systemd."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string(text)
    accept(shlex.split(unit["Service"]["ExecStart"]))


def read_image(text: str) -> None:
    """A Dockerfile, as far as it can be checked without Docker."""
    assert text == (ROOT / "Dockerfile").read_text(), "the page shows another Dockerfile than the repository has"
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    steps = [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]
    stages = {rest.partition(" AS ")[2] for name, rest in steps if name == "FROM"}
    for name, rest in steps:
        if name == "RUN":
            assert set(re.findall(r"\bfrom=(\w+)", rest)) <= stages, rest
            rest = re.sub(r"^(--\w+=\S+ +)+", "", rest)  # of the builder, not of the shell
            subprocess.run(["bash", "-n", "-c", rest], check=True)
            for file in re.findall(r"[\w/]+\.txt", rest):
                assert (ROOT / file).is_file(), f"{file} does not exist"
        elif name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        else:
            assert name in ("FROM", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD"), name
    entry = [json.loads(rest) for name, rest in steps if name in ("ENTRYPOINT", "CMD")]
    accept(entry[0] + entry[1])


def accept(words: list[str]) -> None:
    """AssertionError where ``blockwright COMMAND ...`` would refuse its arguments."""
    program, (name, arguments) = words[0], command_of(words[1:])
    assert Path(program).name == "blockwright", program
    parser = make_parser(name, COMMANDS[name].load())
    try:
        parser.parse_args(arguments)
    except SystemExit as refused:
        raise AssertionError(shlex.join(words)) from refused


READERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": yaml.safe_load,
    "ini": read_unit,
    "dockerfile": read_image,
}


class Reader:
    """Somebody who types in a page, block by block. ``folder``: theirs, empty."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, str(free_port())
        (folder / "examples").symlink_to(ROOT / "examples")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
        self._servers: list[subprocess.Popen[bytes]] = []
        self._printed = ""  # by the last block that ran

    def follow(self, block: Block) -> None:
        """AssertionError with what was printed where it does not work."""
        if block.tested:
            return
        text = block.text.replace("8000", self._port)
        if block.language == "sh":
            text = elsewhere(block.text, self._port)
        if block.file:
            target = self._folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        if block.language == "text" and "output" in block.words:
            shown = f"the block at line {block.line} shows\n{text}\nand this was printed:\n{self._printed}"
            assert prints(text, self._printed.replace(str(self._folder), "")), shown
        if block.language in READERS:
            READERS[block.language](block.text)
        elif block.language == "sh" and "server" in block.words:
            self._start(text, block)
        elif block.language == "sh":
            self._run(["bash", "-euo", "pipefail", "-c", text], block)
        elif block.language == "python" and not block.file:
            self._run([sys.executable, "-c", text], block)

    def close(self) -> None:
        """Stop the page's servers, the last first."""
        for process in reversed(self._servers):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE)

    def _run(self, command: list[str], block: Block) -> None:
        fails = "fails" in block.words
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if fails else subprocess.PIPE,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        self._printed = done.stdout
        assert (done.returncode != 0) == fails, f"the block at line {block.line}\n{block.text}\n{done.stdout}\n{done.stderr}"

    def _start(self, text: str, block: Block) -> None:
        """One command, not a script: its process is the server's."""
        log = self._folder / f"server-{len(self._servers)}.log"
        command = shlex.split(text.replace("\\\n", " "))
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        self._servers.append(process)
        until_now(lambda: "ready at" in log.read_text() or process.poll() is not None, "ready at")
        assert process.poll() is None, f"the block at line {block.line}\n{text}\n{log.read_text()}"

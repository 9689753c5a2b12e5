"""The files of a batch without a server: what is to be answered, what is answered, and what went wrong.

An output is only ever appended to, a line at a time, so it holds whole lines whatever ends the program; a torn last one (of
a full disk, a machine that died) is cut off. Nothing here knows models.
"""

from __future__ import annotations

import fcntl
import json
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blockwright.api.batches.lines import BatchLine, LineAnswer, LineRefused, parse_line, result_line

BLOCK = 1 << 20  # bytes


class BatchFileError(Exception):
    """A file is not what it should be, or cannot be written; one sentence with the remedy."""


class BatchInput:
    """JSONL on disk: lines by number, from 0, read again whenever one is asked for. Empty lines are skipped and not counted.

    ``refused``: lines that are no requests, and why. Raises BatchFileError for a file that cannot be read, has no line, or
    has no line that is JSON: that is no JSONL.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places, self._numbers = array("Q"), array("Q")  # of its bytes; in the file, from 1
        self._ids: list[str] = []
        self.refused: dict[int, LineRefused] = {}
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise BatchFileError(f"{path} cannot be read ({error.strerror}); name a file of JSON lines") from None
        try:
            self._scan()
        except BaseException:
            self._file.close()
            raise

    def _scan(self) -> None:
        seen: dict[str, int] = {}
        at, broken = 0, 0
        for number, raw in enumerate(self._file, 1):
            begin, at = at, at + len(raw)
            if not raw.strip():
                continue
            line = len(self._places)
            self._places.append(begin)
            self._numbers.append(number)
            try:
                id = parse_line(raw.strip()).custom_id
            except LineRefused as error:
                self.refused[line], id = error, error.custom_id or ""
                broken += error.code == "invalid_json_line"
            if id and seen.setdefault(id, number) != number:
                message = f"custom_id {id!r} is that of line {seen[id]}, too; give each line one of its own"
                self.refused[line] = LineRefused("duplicate_custom_id", message, "custom_id", id)
            self._ids.append(id)
        if not self._places:
            raise BatchFileError(f"{self.path} has no line; write one JSON object on each: custom_id, method, url, body")
        if broken == len(self._places):
            said = f"line {self._numbers[0]}: {self.refused[0]}"
            raise BatchFileError(f"{self.path} is no JSONL ({said}); write one JSON object on each line")

    def __len__(self) -> int:
        return len(self._places)

    def good(self) -> list[int]:
        """Lines that are requests."""
        return [line for line in range(len(self)) if line not in self.refused]

    def custom_id(self, line: int) -> str:
        """Empty where it has none."""
        return self._ids[line]

    def number(self, line: int) -> int:
        """Its place in the file, from 1, as an editor counts."""
        return self._numbers[line]

    def line(self, line: int) -> BatchLine:
        """Parsed again. Raises LineRefused if somebody has changed the file."""
        self._file.seek(self._places[line])
        return parse_line(self._file.readline().strip())

    def close(self) -> None:
        self._file.close()


class BatchOutput:
    """Answers in a file, which this process alone writes. ``done``: custom id -> tokens of its answer, of those that were
    there. Raises BatchFileError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BatchFileError(f"{path} cannot be written ({error.strerror}); name another output") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self._read()
        except OSError as error:
            os.close(self._file)
            busy = isinstance(error, BlockingIOError)
            said = "is written by another process" if busy else f"cannot be read ({error.strerror})"
            raise BatchFileError(f"{path} {said}; name another output, or wait for its end") from None
        except BatchFileError:
            os.close(self._file)
            raise

    def _read(self) -> dict[str, int]:
        """What is there; afterwards the file ends with its last whole line."""
        found: dict[str, int] = {}
        whole = 0
        with open(os.dup(self._file), "rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    break
                found |= _result(raw, f"line {number} of {self.path}")
                whole += len(raw)
        os.ftruncate(self._file, whole)
        os.lseek(self._file, whole, os.SEEK_SET)
        return found

    def append(self, raw: bytes) -> None:
        """One line. Raises BatchFileError, and then nothing of it is there."""
        begin = os.lseek(self._file, 0, os.SEEK_CUR)
        rest = memoryview(raw)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, begin)
            os.lseek(self._file, begin, os.SEEK_SET)
            remedy = "what was answered is there; make room and run the same command again"
            raise BatchFileError(f"{self.path} cannot be written ({error.strerror}); {remedy}") from None

    def close(self) -> None:
        """What was written survives the machine's end, too."""
        os.fsync(self._file)
        os.close(self._file)


def _result(raw: bytes, where: str) -> dict[str, int]:
    """The custom id of a line of an output and the tokens of its answer."""
    try:
        line: Any = json.loads(raw)
        id, response = line["custom_id"], line["response"]
        if not isinstance(id, str) or response["status_code"] != 200:
            raise KeyError("custom_id")
        return {id: int(response["body"]["usage"]["completion_tokens"])}
    except (ValueError, KeyError, TypeError):
        remedy = "name another output, or move this file away"
        raise BatchFileError(f"{where} is no answer of a batch, so nothing is appended to it; {remedy}") from None


def check_belongs(given: BatchInput, output: BatchOutput) -> dict[int, int]:
    """Line -> tokens of its answer, of lines that are answered in the output. Raises BatchFileError where that has answers
    to other lines: somebody means another file."""
    lines = {given.custom_id(line): line for line in reversed(given.good())}
    strange = next((id for id in output.done if id not in lines), None)
    if strange is not None:
        message = f"{output.path} has an answer to {strange!r}, which {given.path} does not have"
        raise BatchFileError(f"{message}; name another output, or move that file away")
    return {lines[id]: tokens for id, tokens in output.done.items()}


def errors_path(output: Path) -> Path:
    """``out.jsonl`` -> ``out.errors.jsonl``: what failed, written anew by each run, which tries it again."""
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def error_line(id: str, custom_id: str, refused: LineRefused) -> bytes:
    """Of a line that is no request."""
    error = {"code": refused.code, "message": str(refused), "param": refused.param}
    return result_line(id, custom_id or None, None, error)


def said(answer: LineAnswer) -> str:
    """The sentence of an error."""
    body: Any = json.loads(answer.body)
    return f"{answer.status}: {body['error']['message']}"


def summary(failed: Iterable[tuple[int, str]], most: int = 3) -> list[str]:
    """What failed in words: equal reasons once, with the first line of each. ``failed``: place in the file, sentence."""
    reasons: dict[str, list[int]] = {}
    for number, why in failed:
        reasons.setdefault(why, []).append(number)
    ordered = sorted(reasons.items(), key=lambda one: (-len(one[1]), one[1][0]))
    found = []
    for why, numbers in ordered[:most]:
        others = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        found.append(f"line {min(numbers)}{others}: {why}")
    if len(ordered) > most:
        found.append(f"{len(ordered) - most} other reasons")
    return found

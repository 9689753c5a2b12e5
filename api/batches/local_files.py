"""The files of a batch that runs without a server: its requests, its answers, and its errors.

An output file grows by one line at a time, so it holds whole lines whatever ends the program. A torn last line (of a full
disk, a crashed machine) is cut off, if it begins like an answer. Each line has the hash of the request that it answers, and
the identity of the model. Nothing else here depends on models.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...gpu.regular_file import open_plain
from ...policies.model.tier_choice import auto_id, family_of_auto
from ...policies.model.tiers import family_of
from .lines import BatchLine, LineAnswer, LineRefused, line_hash, parse_line, result_line

REQUEST_HASH, MODEL_HASH = "request_hash", "model_hash"  # keys of an output's lines, in addition to OpenAI's
HASH = 16  # bytes
_BEGINNING = b'{"id": "'  # of every line of an output


class BatchFileError(Exception):
    """A file that is invalid or cannot be written; one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer that an output file had when it was opened.

    ``number``: its line, from 1. A hash that it lacks is empty.
    """

    number: int
    custom_id: str
    tokens: int
    request_hash: str
    model_hash: str


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """An answer that no longer belongs to its request. ``why``: half a sentence for people."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """An output compared with its input. ``done``: answered line -> tokens of its answer."""

    done: dict[int, int]
    stale: list[StaleAnswer]


class BatchInput:
    """A JSONL file: lines by number, from 0, read again at each access. Empty lines are skipped and not counted.

    ``refused``: lines that are not requests, with the reason. Raises BatchFileError for a file that cannot be read, has no
    line, or has no line of valid JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places, self._numbers = array("Q"), array("Q")  # byte offsets; line numbers in the file, from 1
        self._ids: list[str] = []
        self._hashes = bytearray()  # HASH bytes for each line; zeros if it is not a request
        self._models: list[str | None] = []
        self.refused: dict[int, LineRefused] = {}
        try:
            self._file = open(open_plain(path), "rb")  # noqa: SIM115 (closed by ``close``)
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
            hash, model = bytes(HASH), None
            try:
                parsed = parse_line(raw.strip())
                id = parsed.custom_id
                hash = _hash(parsed)
                model = _model(parsed)
            except LineRefused as error:
                self.refused[line], id = error, error.custom_id or ""
                broken += error.code == "invalid_json_line"
            self._hashes += hash
            self._models.append(model)
            if id and seen.setdefault(id, number) != number:
                message = f"custom_id {id!r} is on line {seen[id]}, too; give each line one of its own"
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
        """Return the lines that are requests."""
        return [line for line in range(len(self)) if line not in self.refused]

    def custom_id(self, line: int) -> str:
        """Return the custom id of a line; empty if it has none."""
        return self._ids[line]

    def number(self, line: int) -> int:
        """Return the number of a line in an editor, from 1."""
        return self._numbers[line]

    def hash(self, line: int) -> str:
        """Return the hash of the request, as ``line_hash`` makes it."""
        return self._hashes[HASH * line : HASH * (line + 1)].hex()

    def model(self, line: int) -> str | None:
        """Return the model id that the request names; None if it names none."""
        return self._models[line]

    def line(self, line: int) -> BatchLine:
        """Return the line, parsed again; raise LineRefused if the file has changed."""
        self._file.seek(self._places[line])
        parsed = parse_line(self._file.readline().strip())
        if parsed.custom_id != self._ids[line] or _hash(parsed).hex() != self.hash(line):
            raise LineRefused("changed_line", "it is another request")
        return parsed

    def close(self) -> None:
        self._file.close()


def _hash(line: BatchLine) -> bytes:
    """Return the hash of a line; raise LineRefused if it is nested too deeply to be serialized."""
    try:
        return bytes.fromhex(line_hash(line))
    except RecursionError:
        message = "the line is nested too deeply; send a flatter object"
        raise LineRefused("invalid_json_line", message, custom_id=line.custom_id) from None


def _model(line: BatchLine) -> str | None:
    """Return the model id that identifies a line's model; of one with ``quality`` the id that stands for all tiers."""
    named = line.body.get("model")
    if not isinstance(named, str):
        return None
    if line.body.get("quality") is not None:
        named = auto_id(family_of(named) or family_of_auto(named) or named)
    return sys.intern(named)


class BatchOutput:
    """An output file, which only this process writes. ``answers``: the ones that were there. Raises BatchFileError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = _open_locked(path)
            self.answers = self._read()
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            said = "is written by another process" if busy else f"cannot be written ({error.strerror})"
            remedy = "name another output" + ", or wait for its end" * busy
            raise BatchFileError(f"{path} {said}; {remedy}") from None

    def _read(self) -> list[StoredAnswer]:
        """Return the existing answers and cut the file after its last whole line."""
        found = []
        whole = 0
        try:
            with open(os.dup(self._file), "rb") as file:
                for number, raw in enumerate(file, 1):
                    if not raw.endswith(b"\n"):
                        if not (raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)):
                            raise _no_answer(number, self.path)
                        break
                    found.append(_stored(raw, number, self.path))
                    whole += len(raw)
            os.ftruncate(self._file, whole)
            os.lseek(self._file, whole, os.SEEK_SET)
        except BaseException:
            os.close(self._file)
            raise
        return found

    def drop(self, numbers: Collection[int]) -> None:
        """Remove these lines (from 1). The file is replaced atomically: a crash leaves the old or the new one."""
        target = self.path.resolve()
        part = target.with_name(f".{target.name}.part")
        try:
            new = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(new, os.fstat(self._file).st_mode & 0o777)
                os.lseek(self._file, 0, os.SEEK_SET)
                with open(os.dup(self._file), "rb") as old, open(os.dup(new), "wb") as file:
                    file.writelines(raw for number, raw in enumerate(old, 1) if number not in numbers)
                os.fsync(new)
                os.replace(part, target)
            except BaseException:
                os.close(new)
                part.unlink(missing_ok=True)
                raise
        except OSError as error:
            message = f"{self.path} cannot be written anew ({error.strerror}), and is as it was"
            raise BatchFileError(f"{message}; make room and run the same command again") from None
        os.close(self._file)
        self._file = new

    def append(self, raw: bytes) -> None:
        """Append one line; raise BatchFileError, and then leave nothing of it."""
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
        """Sync and close the file, so that its contents survive a crash of the machine."""
        os.fsync(self._file)
        os.close(self._file)


def _open_locked(path: Path) -> int:
    """Return a locked descriptor of the file of this name, which ``drop`` of another process may replace meanwhile."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass  # it was removed meanwhile; a new one is made
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _stored(raw: bytes, number: int, path: Path) -> StoredAnswer:
    """Return the answer in line ``number`` of an output."""
    try:
        line: Any = json.loads(raw)
        id, response = line["custom_id"], line["response"]
        if not isinstance(id, str) or response["status_code"] != 200:
            raise KeyError("custom_id")
        tokens = int(response["body"]["usage"]["completion_tokens"])
        hashes = [value if isinstance(value := line.get(name), str) else "" for name in (REQUEST_HASH, MODEL_HASH)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_answer(number, path) from None
    return StoredAnswer(number, id, tokens, *hashes)


def _no_answer(number: int, path: Path) -> BatchFileError:
    remedy = "name another output, or move this file away"
    return BatchFileError(f"line {number} of {path} is no answer of a batch, so nothing is appended to it; {remedy}")


def compare(given: BatchInput, output: BatchOutput, models: Mapping[str, str]) -> Comparison:
    """Return the lines that the output answers, and the answers that belong to other requests or other models.

    ``models``: identities by model id, the default one first. An answer of a model that is not served now stays: its request
    is known to be the same.
    """
    lines = {given.custom_id(line): line for line in reversed(given.good())}
    default = next(iter(models), "")
    done: dict[int, int] = {}
    stale = []
    for one in output.answers:
        line = lines.get(one.custom_id)
        if line is None:
            why = f"{output.path} has an answer to {one.custom_id!r}, which {given.path} does not have"
        elif not one.request_hash or not one.model_hash:
            where = f"line {one.number} of {output.path}, the answer to {one.custom_id!r}"
            why = f"{where}, does not say which request it answers (an older version wrote it)"
        elif one.request_hash != given.hash(line):
            where = f"line {given.number(line)} of {given.path} ({one.custom_id!r})"
            why = f"{where} has changed since {output.path} got its answer"
        elif one.model_hash != models.get(name := given.model(line) or default, one.model_hash):
            where = f"line {given.number(line)} of {given.path} ({one.custom_id!r})"
            why = (
                f"{where} was answered by another {name!r} than this (weights, tokenizer, defaults, dtype or length differ)"
            )
        else:
            done.setdefault(line, one.tokens)
            continue
        stale.append(StaleAnswer(one.number, why))
    return Comparison(done, stale)


def stale_sentence(stale: list[StaleAnswer]) -> str:
    """Return a sentence on the stale answers and the remedy."""
    others = len(stale) - 1
    more = f", and {others:,} more answer{'s are' if others > 1 else ' is'} like that" if others else ""
    dropped = "them" if others else "it"
    return f"{stale[0].why}{more}; give --redo to drop {dropped} and answer what is left, or name another output"


def errors_path(output: Path) -> Path:
    """Return the path of the error file: ``out.jsonl`` -> ``out.errors.jsonl``.

    Each run tries failed lines again and rewrites that file.
    """
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def error_line(id: str, custom_id: str, refused: LineRefused) -> bytes:
    """Return the error file's entry for a line that is not a request."""
    error = {"code": refused.code, "message": str(refused), "param": refused.param}
    return result_line(id, custom_id or None, None, error)


def said(answer: LineAnswer) -> str:
    """Return the sentence of an error."""
    body: Any = json.loads(answer.body)
    return f"{answer.status}: {body['error']['message']}"


def summary(failed: Iterable[tuple[int, str]], limit: int = 3) -> list[str]:
    """Return the failures in words: equal reasons once, with the first line of each.

    ``failed``: line number in the file, sentence.
    """
    reasons: dict[str, list[int]] = {}
    for number, why in failed:
        reasons.setdefault(why, []).append(number)
    ordered = sorted(reasons.items(), key=lambda one: (-len(one[1]), one[1][0]))
    found = []
    for why, numbers in ordered[:limit]:
        others = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        found.append(f"line {min(numbers)}{others}: {why}")
    if len(ordered) > limit:
        found.append(f"{len(ordered) - limit} other reasons")
    return found

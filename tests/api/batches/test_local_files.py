"""Files of a batch without a server: whole lines or none, whatever went wrong before; mistakes are told with their place."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockwright.api.batches.lines import LineAnswer, result_line
from blockwright.api.batches.local_files import (
    BatchFileError,
    BatchInput,
    BatchOutput,
    check_belongs,
    error_line,
    errors_path,
    said,
    summary,
)


def line(id: str = "a", **more: object) -> str:
    return json.dumps({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, **more})


@pytest.fixture
def given(tmp_path: Path) -> Iterator[Callable[..., BatchInput]]:
    """``given(*lines)``: a file of these lines, closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(*lines: str) -> BatchInput:
            path = tmp_path / "in.jsonl"
            path.write_text("\n".join(lines))
            return opened.enter_context(contextlib.closing(BatchInput(path)))

        yield make


def answered(id: str, tokens: int = 3) -> bytes:
    body = json.dumps({"usage": {"completion_tokens": tokens}}).encode()
    return result_line("batch_req_1", id, LineAnswer(status=200, request_id="cmpl-1", body=body))


def test_lines_are_read_again_by_their_number(given: Callable[..., BatchInput]) -> None:
    found = given(line("a"), "", "   ", line("b", body={"prompt": "é" * 10}), line("c"))
    assert len(found) == 3
    assert [found.custom_id(n) for n in range(3)] == ["a", "b", "c"]
    assert [found.number(n) for n in range(3)] == [1, 4, 5]
    assert found.line(2).custom_id == "c"
    assert found.line(1).body == {"prompt": "é" * 10}
    assert found.good() == [0, 1, 2]


def test_each_wrong_line_is_refused_alone(given: Callable[..., BatchInput]) -> None:
    found = given(line("a"), "{broken", line("a"), line("b", url="/v1/nothing"), line("c", method="GET"), line("d"))
    assert {n: error.code for n, error in found.refused.items()} == {
        1: "invalid_json_line",
        2: "duplicate_custom_id",
        3: "invalid_url",
        4: "invalid_method",
    }
    assert str(found.refused[2]) == "custom_id 'a' is that of line 1, too; give each line one of its own"
    assert found.good() == [0, 5]
    told = json.loads(error_line("batch_req_1", found.custom_id(3), found.refused[3]))
    assert (told["custom_id"], told["response"], told["error"]["code"]) == ("b", None, "invalid_url")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no line"),
        ("\n\n", "has no line"),
        ("hello\nworld\n", r"is no JSONL \(line 1: .*\)"),
        ("[\n1,\n2\n]\n", "is no JSONL"),
        ("\n\x00\xff", r"is no JSONL \(line 2: "),
    ],
)
def test_what_is_no_jsonl_is_refused_with_line_and_reason(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BatchFileError, match=why):
        BatchInput(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BatchFileError, match=r"nothing.jsonl cannot be read \(No such file"):
        BatchInput(tmp_path / "nothing.jsonl")
    with pytest.raises(BatchFileError, match="cannot be written"):
        BatchOutput(tmp_path / "no" / "folder.jsonl")


def test_what_is_answered_is_known_and_a_torn_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    output = BatchOutput(path)
    output.append(answered("a", 3))
    output.append(answered("c", 5))
    output.close()
    whole = path.read_bytes()
    for torn in (b"", b'{"id": "batch', answered("b")[:-1]):
        path.write_bytes(whole + torn)
        again = BatchOutput(path)
        assert again.done == {"a": 3, "c": 5}
        again.append(answered("b"))
        again.close()
        assert path.read_bytes() == whole + answered("b")


def test_an_output_of_another_input_is_not_appended_to(tmp_path: Path, given: Callable[..., BatchInput]) -> None:
    output = BatchOutput(tmp_path / "out.jsonl")
    output.append(answered("b"))
    output.close()
    again = BatchOutput(tmp_path / "out.jsonl")
    assert check_belongs(given("{broken", line("a"), line("b")), again) == {2: 3}
    with pytest.raises(BatchFileError, match=r"has an answer to 'b', which .*in.jsonl does not have"):
        check_belongs(given(line("a")), again)
    again.close()


@pytest.mark.parametrize("text", ["hello", '{"custom_id": "a"}', "[]", line("a")])
def test_a_file_that_is_no_output_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(BatchFileError, match=r"line 1 of .*out.jsonl is no answer of a batch"):
        BatchOutput(path)
    assert path.read_text() == text + "\n"


def test_two_do_not_write_one_output(tmp_path: Path) -> None:
    first = BatchOutput(tmp_path / "out.jsonl")
    with pytest.raises(BatchFileError, match="is written by another process"):
        BatchOutput(tmp_path / "out.jsonl")
    first.close()
    BatchOutput(tmp_path / "out.jsonl").close()


def test_of_a_full_disk_nothing_is_left_but_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = BatchOutput(tmp_path / "out.jsonl")
    output.append(answered("a"))
    real, left = os.write, 10

    def full(file: int, data: memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[:left])
        left -= written
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BatchFileError, match=r"No space left on device.*make room and run the same command again"):
        output.append(answered("b"))
    monkeypatch.undo()
    output.append(answered("c"))
    output.close()
    assert (tmp_path / "out.jsonl").read_bytes() == answered("a") + answered("c")


def test_what_failed_is_told_in_words() -> None:
    failed = [(7, "404: no such model"), (2, "404: no such model"), (9, "x"), (4, "y"), (5, "z")]
    assert summary(failed) == ["line 2 and 1 more: 404: no such model", "line 4: y", "line 5: z", "1 other reasons"]
    body = json.dumps({"error": {"message": "max_tokens is 0; give more"}}).encode()
    assert said(LineAnswer(status=400, request_id="", body=body)) == "400: max_tokens is 0; give more"
    assert errors_path(Path("some/out.jsonl")) == Path("some/out.errors.jsonl")

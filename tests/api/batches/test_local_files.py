"""Files of a batch without a server: whole lines or none, whatever went wrong before; mistakes name their place."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockwright.api.batches.lines import LineAnswer, LineRefused, line_hash, parse_line, result_line
from blockwright.api.batches.local_files import (
    MODEL_HASH,
    REQUEST_HASH,
    BatchFileError,
    BatchInput,
    BatchOutput,
    compare,
    error_line,
    errors_path,
    said,
    stale_sentence,
    summary,
)
from blockwright.tests.claims import claim

MODELS = {"tiny": "11", "other": "22"}  # identities, the default one first


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


def answered(id: str, tokens: int = 3, request: str = "", model: str = "") -> bytes:
    """The line of an output; ``request``: the line that was asked."""
    body = json.dumps({"usage": {"completion_tokens": tokens}}).encode()
    hashes = {REQUEST_HASH: line_hash(parse_line(request.encode()))} if request else {}
    hashes |= {MODEL_HASH: model} if model else {}
    return result_line("batch_req_1", id, LineAnswer(status=200, request_id="cmpl-1", body=body), more=hashes)


def known(output: BatchOutput) -> dict[str, int]:
    return {one.custom_id: one.tokens for one in output.answers}


def test_lines_are_read_again_by_their_number(given: Callable[..., BatchInput]) -> None:
    found = given(line("a"), "", "   ", line("b", body={"prompt": "é" * 10}), line("c"))
    assert len(found) == 3
    assert [found.custom_id(n) for n in range(3)] == ["a", "b", "c"]
    assert [found.number(n) for n in range(3)] == [1, 4, 5]
    assert found.line(2).custom_id == "c"
    assert found.line(1).body == {"prompt": "é" * 10}
    assert found.good() == [0, 1, 2]


@claim("A wrong line gets its error, and the batch goes on", of="offline")
def test_each_wrong_line_is_refused_alone(given: Callable[..., BatchInput]) -> None:
    found = given(line("a"), "{broken", line("a"), line("b", url="/v1/nothing"), line("c", method="GET"), line("d"))
    assert {n: error.code for n, error in found.refused.items()} == {
        1: "invalid_json_line",
        2: "duplicate_custom_id",
        3: "invalid_url",
        4: "invalid_method",
    }
    assert str(found.refused[2]) == "custom_id 'a' is on line 1, too; give each line one of its own"
    assert found.good() == [0, 5]
    answer = json.loads(error_line("batch_req_1", found.custom_id(3), found.refused[3]))
    assert (answer["custom_id"], answer["response"], answer["error"]["code"]) == ("b", None, "invalid_url")


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


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
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
        assert known(again) == {"a": 3, "c": 5}
        again.append(answered("b"))
        again.close()
        assert path.read_bytes() == whole + answered("b")


def compared(folder: Path, given: BatchInput, *answers: bytes) -> tuple[dict[int, int], str]:
    """Lines that are done, and what is said of the first answer that is not the input's."""
    path = folder / "out.jsonl"
    path.write_bytes(b"".join(answers))
    with contextlib.closing(BatchOutput(path)) as output:
        found = compare(given, output, MODELS)
    return found.done, stale_sentence(found.stale).replace(f"{folder}/", "") if found.stale else ""


def test_an_answer_belongs_to_its_request_wherever_that_stands(tmp_path: Path, given: Callable[..., BatchInput]) -> None:
    a, b = line("a"), line("b", body={"prompt": "y", "model": "other", "max_tokens": 3})
    spaced = json.dumps(
        {"body": {"max_tokens": 3, "model": "other", "prompt": "y"}, "url": "/v1/completions", "method": "POST"}
        | {"custom_id": "b"},
        indent=None,
        separators=(" , ", " : "),
    )
    answers = answered("a", 3, a, "11"), answered("b", 5, b, "22")
    assert compared(tmp_path, given(a, b, line("c")), *answers) == ({0: 3, 1: 5}, "")
    assert compared(tmp_path, given("{broken", spaced, line("c"), a), *answers) == ({1: 5, 3: 3}, "")


CHANGED = "line 2 of in.jsonl ('a') has changed since out.jsonl got its answer"
REMEDY = "; give --redo to drop it and answer what is left, or name another output"


@claim("Answers of `batch run` belong to their request and to the model that gave them", of="offline")
@pytest.mark.parametrize(
    ("now", "said"),
    [
        (line("a", body={"prompt": "z"}), CHANGED + REMEDY),
        (line("a", body={"prompt": "x", "model": "other"}), CHANGED + REMEDY),
        (line("a", body={"prompt": "x", "temperature": 0}), CHANGED + REMEDY),
        (line("a", url="/v1/chat/completions", body={"prompt": "x"}), CHANGED + REMEDY),
        (line("c"), "out.jsonl has an answer to 'a', which in.jsonl does not have" + REMEDY),
        (line("a", method="GET"), "out.jsonl has an answer to 'a', which in.jsonl does not have" + REMEDY),
    ],
    ids=["prompt", "model", "sampling", "endpoint", "removed", "no request any more"],
)
def test_an_answer_of_another_request_is_refused(
    tmp_path: Path, given: Callable[..., BatchInput], now: str, said: str
) -> None:
    answers = answered("b", 5, line("b"), "11"), answered("a", 3, line("a"), "11")
    assert compared(tmp_path, given(line("b"), now), *answers) == ({0: 5}, said)


def test_of_two_lines_with_one_id_the_first_is_answered(tmp_path: Path, given: Callable[..., BatchInput]) -> None:
    first, second = line("a"), line("a", body={"prompt": "z"})
    assert compared(tmp_path, given(first, second), answered("a", 3, first, "11")) == ({0: 3}, "")
    _, said = compared(tmp_path, given(second, first), answered("a", 3, first, "11"))
    assert said.startswith("line 1 of in.jsonl ('a') has changed")


@claim("Answers of `batch run` belong to their request and to the model that gave them", of="offline")
def test_an_answer_of_another_model_of_that_name_is_refused(tmp_path: Path, given: Callable[..., BatchInput]) -> None:
    a = line("a")
    b = line("b", body={"prompt": "x", "model": "other"})
    c = line("c", body={"prompt": "x", "model": "gone"})
    answers = answered("a", 3, a, "10"), answered("b", 4, b, "20"), answered("c", 5, c, "30")
    done, said = compared(tmp_path, given(a, b, c), *answers)
    assert done == {2: 5}, "of a model that is not served now there is nothing to compare"
    assert said == (
        "line 1 of in.jsonl ('a') was answered by another 'tiny' than this (weights, tokenizer, defaults, dtype or length "
        "differ), and 1 more answer is like that; give --redo to drop them and answer what is left, or name another output"
    )


def test_an_output_without_hashes_is_not_trusted(tmp_path: Path, given: Callable[..., BatchInput]) -> None:
    for old in (answered("a"), answered("a", 3, line("a")), answered("a", 3, "", "11")):
        done, said = compared(tmp_path, given(line("a")), old)
        assert not done
        assert said.startswith("line 1 of out.jsonl, the answer to 'a', does not say which request it answers")
        assert "--redo" in said


def test_what_is_dropped_is_gone_at_once_and_the_rest_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    lines = [answered(id) for id in "abcd"]
    path.write_bytes(b"".join(lines))
    path.chmod(0o640)
    output = BatchOutput(path)

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fails)
        with pytest.raises(BatchFileError, match=r"out.jsonl cannot be written anew .*is as it was"):
            output.drop({1})
    assert path.read_bytes() == b"".join(lines)
    output.drop({2, 4})
    assert path.read_bytes() == lines[0] + lines[2]
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(BatchFileError, match="is written by another process"):
        BatchOutput(path)
    output.append(lines[1])
    output.close()
    assert path.read_bytes() == lines[0] + lines[2] + lines[1]
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_file_that_is_edited_while_it_is_answered_is_noticed(given: Callable[..., BatchInput]) -> None:
    found = given(line("a"), line("b"))
    found.path.write_text(found.path.read_text().replace('"x"', '"y"'))
    with pytest.raises(LineRefused, match="another request"):
        found.line(1)


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ({"model": "tiny"}, "model stands beside body"),
        ({"max_tokens": 5}, "max_tokens stands beside body"),
        ({"adapter_id": "dates"}, "send model = 'dates'"),
        ({"temprature": 0}, "did you mean temperature"),
    ],
)
def test_a_field_that_shapes_the_answer_is_refused_beside_the_body(beside: dict[str, object], says: str) -> None:
    with pytest.raises(LineRefused, match=says) as caught:
        parse_line(line(**beside).encode())
    assert (caught.value.code, caught.value.custom_id) == ("misplaced_field", "a")
    assert parse_line(line(metadata={"a": "b"}, model=None, note="x").encode()).custom_id == "a"


@pytest.mark.parametrize("end", ["\n", ""], ids=["whole", "without its end"])
@pytest.mark.parametrize("text", ["hello", '{"custom_id": "a"}', "[]", line("a")])
def test_a_file_that_is_no_output_stays_as_it_is(tmp_path: Path, text: str, end: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text + end)
    with pytest.raises(BatchFileError, match=r"line 1 of .*out.jsonl is no answer of a batch"):
        BatchOutput(path)
    assert path.read_text() == text + end


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


def test_what_failed_is_reported_in_words() -> None:
    failed = [(7, "404: no such model"), (2, "404: no such model"), (9, "x"), (4, "y"), (5, "z")]
    assert summary(failed) == ["line 2 and 1 more: 404: no such model", "line 4: y", "line 5: z", "1 other reasons"]
    body = json.dumps({"error": {"message": "max_tokens is 0; give more"}}).encode()
    assert said(LineAnswer(status=400, request_id="", body=body)) == "400: max_tokens is 0; give more"
    assert errors_path(Path("some/out.jsonl")) == Path("some/out.errors.jsonl")

"""What can be typed into a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from blockwright.api.commands import CommandError
from blockwright.api.commands.chat import HELP, Conversation, base_model, converse, read_text, stream
from blockwright.api.program.results import Answer, Choice, Piece, RequestError


class Session:
    """Answers each message with its last word."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[dict[str, str]], dict[str, Any]]] = []
        self.refuse: RequestError | None = None

    def models(self) -> list[str]:
        return ["tiny", "tuned"]

    def stream_chat(self, messages: list[dict[str, str]], **options: Any) -> Any:
        if self.refuse is not None:
            raise self.refuse
        self.asked.append((messages, options))
        return iter([])

    def post(self, path: str, body: Any) -> Any:
        assert path == "/tokenize"
        if self.refuse is not None:
            raise self.refuse


@pytest.fixture(name="talk")
def talk_(monkeypatch: pytest.MonkeyPatch) -> Conversation:
    monkeypatch.setattr("blockwright.api.commands.chat.stream", lambda call, verbose: "yes")
    return Conversation(Session(), None, False, {"temperature": 0.0})  # type: ignore[arg-type]


def typed(*lines: str | type[BaseException]) -> Any:
    words: Iterator[str | type[BaseException]] = iter((*lines, EOFError))

    def read(prompt: str) -> str:
        word = next(words)
        if isinstance(word, str):
            return word
        raise word

    return read


def asked(talk: Conversation) -> list[tuple[list[str], dict[str, Any]]]:
    session: Any = talk._session
    return [([m["content"] for m in messages], options) for messages, options in session.asked]


def test_what_was_said_is_sent_again_and_reset_forgets_it(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    assert converse(talk, typed("one", "/system be brief", "two", "/reset", "three", "/quit", "never")) == 0
    assert [said for said, _ in asked(talk)] == [["one"], ["be brief", "one", "yes", "two"], ["be brief", "three"]]
    assert "the system message is set" in capsys.readouterr().err


def test_ctrl_c_clears_the_line_and_loses_nothing(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    converse(talk, typed("one", KeyboardInterrupt, KeyboardInterrupt, "two"))
    assert [said for said, _ in asked(talk)] == [["one"], ["one", "yes", "two"]]
    assert capsys.readouterr().err.count("(Ctrl-D or /quit ends)") == 2


def test_models_and_settings_can_be_changed(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("/model", "/model tunde", "/model tuned", "/set top_k 3", "/set temperature warm", "/set", "/set temperature")
    converse(talk, typed(*lines, "/set hot 1", "/sytem", "/help", "x"))
    assert asked(talk) == [(["x"], {"model": "tuned", "top_k": 3})]
    message = capsys.readouterr().err
    assert "* tiny\n  tuned\n" in message
    assert "the server has no model 'tunde'; did you mean 'tuned'?" in message
    assert "temperature is 'warm'; give a number" in message
    assert "temperature 0.0, top_k 3" in message
    assert "there is no 'hot' to set; there are: temperature" in message
    assert "there is no /sytem; did you mean /system?" in message
    assert HELP in message


def test_a_value_that_the_server_would_refuse_is_refused_at_once(
    talk: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(talk, typed("/set temperature 9", "/set top_p nan", "/set max_tokens -1", "/set seed 7", "/set stop .", "x"))
    assert asked(talk) == [(["x"], {"temperature": 0.0, "seed": 7, "stop": "."})]
    message = capsys.readouterr().err
    assert "temperature is 9.0; give a number from 0 to 2" in message
    assert "max_tokens is -1; give an integer from 0 to" in message


def test_a_text_of_several_lines() -> None:
    assert read_text(typed('"""one', "two", 'three"""')) == "one\ntwo\nthree"
    assert read_text(typed('"""', "a", '"""')) == "a"
    assert read_text(typed("  plain ")) == "plain"


def test_one_does_not_talk_to_a_base_model(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = talk._session
    assert base_model(session, "tiny") == ""
    session.refuse = RequestError(400, "the chat template refuses these messages", code="template_error")
    assert base_model(session, "tiny") == "", "it may take others"
    session.refuse = RequestError(400, "tiny has no tokenizer.json", code="invalid_value")
    with pytest.raises(RequestError, match="has no tokenizer"):
        base_model(session, "tiny")
    session.refuse = RequestError(400, "tiny has no chat template; use /v1/completions", code="no_chat_template")
    assert "it is a base model, which continues text; use 'blockwright complete --model tiny" in base_model(session, "tiny")
    converse(talk, typed("/model tuned"))
    assert "tuned has no chat template: it is a base model" in capsys.readouterr().err
    assert "model" not in talk.options, "the one before answers on"


def test_a_refusal_is_said_and_the_conversation_goes_on(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = talk._session
    session.refuse = RequestError(400, "too long")
    assert converse(talk, typed("one")) == 0
    assert "blockwright: too long" in capsys.readouterr().err
    session.refuse = RequestError(0, "the server is gone")
    with pytest.raises(CommandError, match="the server is gone"):
        converse(talk, typed("one"))


def test_what_a_model_thinks_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Call(list[Piece]):
        answer = Answer("a", "m", (Choice(0, "hello", reasoning="hm, so"),), 1, 4)

    pieces = [Piece("", reasoning="hm, "), Piece("", reasoning="so"), Piece(""), Piece("hel"), Piece("lo")]
    assert stream(cast(Any, Call(pieces)), verbose=False) == "hello"
    assert capsys.readouterr() == ("hello\n", "hm, so\n\n")


def test_the_help_fits_80_columns() -> None:
    assert max(map(len, HELP.splitlines())) <= 80

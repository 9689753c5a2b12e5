"""The HTTP client: generate, chat, list models, explain requests. The commands and the embedded cluster use it.

It owns the connection and the conversion between JSON and ``results.py``. A request has no time limit of its own; leaving a
stream cancels it at the server.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from operator import index
from typing import Any, SupportsIndex, Unpack, overload
from urllib.parse import urlsplit

import aiohttp

from .exchange_errors import (
    DONE,
    PROXY,
    broke,
    error_of,
    failed,
    insecure,
    parsed,
    quoted,
    refusal,
    stranger,
    system_reason,
    unreachable,
    unreadable,
    warn_ignored,
)
from .options import ConversationOptions, EmbedOptions, GenerateOptions, check_options
from .results import Answer, Choice, Piece, RequestError

Prompt = str | Sequence[int]
Vector = tuple[float, ...]  # of float32 values
AT_ONCE = 64  # most requests of one list in flight
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 2.0)  # seconds before a broken stream is asked for again, while nothing comes
EMBEDDED_TOGETHER = 512  # texts of one request for vectors
Message = Mapping[str, Any]


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of an event stream, up to its end mark; raise RequestError. Comments are skipped."""
    async for _, event in _with_ids(answer):
        yield event


async def _with_ids(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a stream as ``events`` does, each with its id; "" if it has none."""
    rest, seen = b"", False
    async for data in answer.content.iter_any():
        *complete, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in complete:
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines == [b"[DONE]"]:
                return
            if lines:
                seen = True
                ids = [line[3:].strip().decode() for line in event.split(b"\n") if line.startswith(b"id:")]
                yield "".join(ids), _object(answer, b"\n".join(lines))
    if not seen and answer.content_type != "text/event-stream":
        raise stranger(*_origin(answer))


def _object(answer: aiohttp.ClientResponse, text: bytes) -> dict[str, Any]:
    """Return the JSON object of an event; raise RequestError."""
    found = parsed(text, "", *_origin(answer))
    if not isinstance(found, dict):
        raise stranger(*_origin(answer))
    return found


def _origin(answer: aiohttp.ClientResponse) -> tuple[str, str, int, str]:
    """Return the path and origin of an answer, its status and its media type."""
    return answer.url.path_qs, f"{answer.url.host}:{answer.url.port}", answer.status, answer.content_type


class GenerateCall:
    """A request that has not been sent yet: ``await`` it for the ``Answer``, or ``async for`` its ``Piece``s.

    After the last piece ``answer`` is the complete answer. Raises RequestError.
    """

    def __init__(self, session: Session, path: str, body: dict[str, Any]) -> None:
        self._session = session
        self._path = path
        self._body = body
        self.id = ""  # the server's id, once it has begun to answer
        self.answer: Answer | None = None

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.whole().__await__()

    async def whole(self) -> Answer:
        """Send the request and return the complete answer."""
        self.answer = answer_of(await self._session.post(self._path, self._body, holds="choices"))
        self.id = self.answer.id
        return self.answer

    async def __aiter__(self) -> AsyncIterator[Piece]:
        body = {**self._body, "stream": True, "stream_options": {"include_usage": True}}
        pieces: dict[int, list[Piece]] = {}
        model = ""
        usage: dict[str, int] = {}
        async with aclosing(self._events(body, pieces)) as found:
            async for event in found:
                if event.get("error"):
                    raise error_of(200, event)
                self.id = event.get("id", "")
                model = event.get("model", "")
                usage = event.get("usage") or usage
                for one in event["choices"]:
                    piece = _piece(one)
                    pieces.setdefault(piece.index, []).append(piece)
                    if piece.text or piece.reasoning or piece.tool_calls or piece.token_ids or piece.finish_reason:
                        yield piece
        if not _complete(pieces):
            raise RequestError(0, "the stream ended before the answer was complete; send the request again")
        self.answer = _answer(self.id, model, tuple(_joined(i, pieces[i]) for i in sorted(pieces)), usage)

    async def _events(self, body: dict[str, Any], pieces: Mapping[int, list[Piece]]) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of the stream. If it breaks, and its events have ids, it goes on after the last one."""
        last = ""
        pauses = iter(PAUSES)
        while True:
            headers = {"x-event-ids": "auto"} | ({"Last-Event-ID": last} if last else {})
            try:
                async with self._session.open("POST", self._path, body, headers) as answer:
                    async for id, event in _with_ids(answer):
                        if id:
                            last = id
                            pauses = iter(PAUSES)
                        yield event
                if not last or _complete(pieces):
                    return
                pause = next(pauses, None)
                if pause is None:
                    return
            except RequestError as error:
                pause = next(pauses, None)
                if not last or error.status not in (0, *PROXY) or pause is None:
                    raise
            await asyncio.sleep(pause)


def _complete(pieces: Mapping[int, Sequence[Piece]]) -> bool:
    """Return whether each choice of an answer has ended."""
    return bool(pieces) and all(found[-1].finish_reason for found in pieces.values())


class GenerateCalls:
    """A list of prompts that has not been sent yet: ``await`` it for the answers, in the order of the prompts.

    Raises RequestError for the first one that fails, and cancels the others.
    """

    def __init__(self, calls: Sequence[GenerateCall]) -> None:
        self._calls = calls

    def __await__(self) -> Generator[Any, None, list[Answer]]:
        return self.whole().__await__()

    async def whole(self) -> list[Answer]:
        """Send the requests and return the complete answers."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(call: GenerateCall) -> Answer:
            async with room:
                return await call.whole()

        tasks = [asyncio.ensure_future(one(call)) for call in self._calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def as_prompts(prompts: object) -> tuple[list[str | list[int]], bool]:
    """Return prompts in any container as texts and lists of token ids, and True for a single prompt. Raise TypeError."""
    if isinstance(prompts, str):
        return [prompts], True
    if not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {prompts!r}; give a text, a list of token ids, or a list of such prompts")
    found = list(prompts)
    if found and not isinstance(found[0], Iterable):
        return [_ids(found)], True
    return [one if isinstance(one, str) else _ids(one) for one in found], False


def _ids(tokens: Iterable[SupportsIndex]) -> list[int]:
    try:
        return [index(token) for token in tokens]  # an array's elements are not integers for JSON
    except TypeError:
        raise TypeError(f"{tokens!r} is no prompt; give a text, or a list of token ids, which are integers") from None


class Session:
    """Requests to one server. ``options`` of ``generate`` and ``chat`` are the API's fields by name."""

    url = ""  # of the server; empty for a cluster that does not listen
    closed = "the session is not open; use it inside 'async with'"  # error of a request without a connection

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    @overload
    def generate(  # type: ignore[overload-overlap] # a text is a sequence of texts, too: the first wins
        self, prompt: Prompt, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateCall: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateCalls: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateCall | GenerateCalls:
        """Continue a prompt (text, or token ids), or each prompt of a list.

        ``model``: by default the server's default model. Raise TypeError for an unknown option or an invalid prompt.
        """
        check_options(options, GenerateOptions)
        prompts, single = as_prompts(prompt)
        calls = [GenerateCall(self, "/v1/completions", asked(model, options, prompt=one)) for one in prompts]
        return calls[0] if single else GenerateCalls(calls)

    def chat(
        self, messages: str | Sequence[Message], *, model: str | None = None, **options: Unpack[ConversationOptions]
    ) -> GenerateCall:
        """Answer messages of role and content; a text is one message of the user. Raise TypeError like ``generate``."""
        check_options(options, ConversationOptions)
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(one) for one in messages]
        return GenerateCall(self, "/v1/chat/completions", asked(model, options, messages=given))

    @overload
    async def embed(  # type: ignore[overload-overlap] # a text is a sequence of texts, too: the first wins
        self, text: Prompt, *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Vector: ...
    @overload
    async def embed(
        self, text: Sequence[Prompt], *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> list[Vector]: ...
    async def embed(
        self, text: Prompt | Sequence[Prompt], *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Vector | list[Vector]:
        """Return the vector of a text (or of token ids), or one for each of a list. ``model``: as in ``generate``.

        Raise TypeError for an unknown option or an invalid text, and RequestError.
        """
        check_options(options, EmbedOptions)
        texts, single = as_prompts(text)
        vectors: list[Vector] = []
        for some in _alike(texts):
            named = {} if model is None else {"model": model}
            body = {
                **named,
                **{k: v for k, v in options.items() if v is not None},
                "input": some,
                "encoding_format": "base64",
            }
            vectors += [_vector(one) for one in (await self.post("/v1/embeddings", body, holds="data"))["data"]]
        return vectors[0] if single else vectors

    async def models(self) -> list[str]:
        """Return the ids of the served models, the default first."""
        found = (await self.get("/v1/models", holds="data"))["data"]
        return [str(one["id"]) for one in sorted(found, key=lambda one: not one.get("default"))]

    async def get(self, path: str, holds: str = "") -> Any:
        """Return the JSON of a GET. ``holds``: a field that every such server sends. Raise RequestError."""
        async with self.open("GET", path) as answer:
            return await _json(answer, holds)

    async def get_text(self, path: str) -> str:
        """Return the text of a GET; raise RequestError."""
        async with self.open("GET", path) as answer:
            return await _text(answer)

    async def post(self, path: str, body: Mapping[str, Any], holds: str = "") -> Any:
        """Return the JSON of a POST. ``holds``: a field that every such server sends. Raise RequestError."""
        async with self.open("POST", path, body) as answer:
            return await _json(answer, holds)

    async def delete(self, path: str) -> Any:
        """Return the JSON of a DELETE; raise RequestError."""
        async with self.open("DELETE", path) as answer:
            return await _json(answer)

    def open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _OpenExchange:
        """Return a context with the response, of status 200 or 202; any other status is a RequestError."""
        if self._http is None:
            raise RuntimeError(self.closed)
        return _OpenExchange(self._http, method, path, body, self.url, headers)

    async def connect(self, http: aiohttp.ClientSession) -> None:
        """Use this connection; ``close`` closes it."""
        self._http = http

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()


class Client(Session):
    """A session with a server at ``url``. The URL may end in ``/v1``, as the base URL of other clients does.

    ``key`` is sent if it is given. Use as ``async with``.
    """

    def __init__(self, url: str, key: str = "") -> None:
        super().__init__()
        self.url, self._key = url.rstrip("/").removesuffix("/v1"), key

    async def __aenter__(self) -> Client:
        await self.connect(open_http(self.url, self._key))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_http(base: str, key: str = "", connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """Return a connection without limits on connections and time, which are the server's to set."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = connector or aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        f"{base}/", headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(sock_connect=10)
    )


class _OpenExchange:
    """One exchange, with errors in our words."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        url: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._headers = headers
        self._http = http
        self._method = method
        self._path = path
        self._body = body
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._where = f"{parts.hostname}:{port}" if parts.hostname else "the cluster"
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._answer = await self._http.request(
                self._method, self._path.lstrip("/"), json=self._body, headers=self._headers
            )
        except aiohttp.ClientError as error:
            raise _unanswered(error, self._where) from None
        if self._answer.status not in DONE:
            try:
                text = await _text(self._answer)
            except aiohttp.ClientError as error:
                raise broke(self._where, error) from None
            raise refusal(*_origin(self._answer), text)
        if ignored := self._answer.headers.get("x-ignored-fields"):
            warn_ignored(ignored)
        return self._answer

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._answer is not None:
            if error is None:
                self._answer.release()
            else:
                self._answer.close()
        if isinstance(error, aiohttp.ClientError):
            raise broke(self._where, error) from None


def _unanswered(error: aiohttp.ClientError, where: str) -> RequestError:
    """Return the error of an exchange that brought no answer. ``where``: of the server."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return insecure(f"{error.host}:{error.port}", error)
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ConnectionResetError):
            return failed(f"{error.host}:{error.port}", error.os_error)
        why = system_reason(error.errno or 0, error.strerror or error)
        return unreachable(f"{error.host}:{error.port}", why)
    if isinstance(error, aiohttp.TooManyRedirects):
        return stranger(*_origin(error.history[-1]))
    if isinstance(error, aiohttp.ClientResponseError):
        return unreadable(where, quoted(error.message))
    return failed(where, error)


async def _json(answer: aiohttp.ClientResponse, holds: str = "") -> Any:
    """Return the JSON of an answer, with this field if one is named; raise RequestError."""
    text = await _text(answer)
    if answer.content_type != "application/json":
        raise stranger(*_origin(answer))
    return parsed(text, holds, *_origin(answer))


async def _text(answer: aiohttp.ClientResponse) -> str:
    """Return the text of an answer. Servers of ours send UTF-8; another's charset may have any name."""
    return (await answer.read()).decode("utf-8", "replace")


def _alike(texts: Sequence[str | list[int]]) -> Iterator[list[str | list[int]]]:
    """Yield stretches of texts for one request each: texts, or lists of token ids, of at most ``EMBEDDED_TOGETHER``."""
    for _, group in groupby(texts, key=lambda one: isinstance(one, str)):
        some = list(group)
        for at in range(0, len(some), EMBEDDED_TOGETHER):
            yield some[at : at + EMBEDDED_TOGETHER]


def _vector(entry: Mapping[str, Any]) -> Vector:
    raw = base64.b64decode(entry["embedding"])
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def asked(model: str | None, options: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Return the body of a request. ``given``: the subject of the options, such as the prompt."""
    named = {} if model is None else {"model": model}
    return {**named, **given, "return_token_ids": True, **{k: v for k, v in options.items() if v is not None}}


def answer_of(body: Mapping[str, Any]) -> Answer:
    """Return the answer in a body that was not streamed."""
    return _answer(body["id"], body["model"], tuple(_choice(one) for one in body["choices"]), body["usage"])


def _answer(id: str, model: str, choices: tuple[Choice, ...], usage: Mapping[str, Any]) -> Answer:
    return Answer(id, model, choices, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))


def _choice(one: Mapping[str, Any]) -> Choice:
    text = one["text"] if "text" in one else one["message"]["content"] or ""
    ids, reason = tuple(one.get("token_ids") or ()), one.get("finish_reason")
    said = one.get("message") or {}
    parts = said.get("reasoning") or "", tuple(said.get("tool_calls") or ())
    return Choice(one["index"], text, ids, reason, one.get("stop_reason"), one.get("logprobs"), *parts)


def _piece(one: Mapping[str, Any]) -> Piece:
    text = one["text"] if "text" in one else one["delta"].get("content") or ""
    ids, said = tuple(one.get("token_ids") or ()), one.get("delta") or {}
    parts = said.get("reasoning") or "", tuple(said.get("tool_calls") or ())
    return Piece(text, one["index"], ids, one.get("finish_reason"), one.get("stop_reason"), *parts)


def _joined(index: int, pieces: Sequence[Piece]) -> Choice:
    ids = tuple(token for piece in pieces for token in piece.token_ids)
    last = pieces[-1]
    text, reasoning = "".join(piece.text for piece in pieces), "".join(piece.reasoning for piece in pieces)
    calls = _calls(pieces)
    return Choice(index, text, ids, last.finish_reason, last.stop_reason, reasoning=reasoning, tool_calls=calls)


def _calls(pieces: Sequence[Piece]) -> tuple[Mapping[str, Any], ...]:
    """Return whole tool calls from their pieces."""
    calls: list[dict[str, Any]] = []
    for one in (call for piece in pieces for call in piece.tool_calls):
        if "id" in one:
            function = {"name": one["function"]["name"], "arguments": ""}
            calls.append({"id": one["id"], "type": one["type"], "function": function})
        calls[one["index"]]["function"]["arguments"] += one["function"]["arguments"]
    return tuple(calls)

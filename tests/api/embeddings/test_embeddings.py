"""``POST /v1/embeddings``: every form of its input and its answer, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import Generation
from blockwright.policies.plan.pooling import Pooling
from blockwright.policies.requests.admission import admit
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests import embedders
from blockwright.tests.api.fake_port import MAX_LENGTH, FakePort, make_folder, vector_given
from blockwright.tests.claims import claim

Values = Callable[[Generation], Sequence[float]]


def lengths(generation: Generation) -> Sequence[float]:
    """The fake vector of a text: the number of its tokens, and the first of them."""
    return [len(generation.prompt), generation.prompt[0], 0.5]


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("embedder") / "tiny")
    prompts = {"query": "find: ", "document": ""}
    pooling = {"embedding_dimension": 8, "pooling_mode": "mean"}
    return embedders.write_modules(folder, "pooling", "normalize", pooling=pooling, prompts=prompts)


@pytest.fixture
def embed(serve: Any, embedder: Path) -> Any:
    """``client, port = await embed(values)``: texts get these vectors."""

    async def start(values: Values = lengths, **options: Any) -> tuple[Any, FakePort]:
        found: tuple[Any, FakePort] = await serve(lambda one: vector_given(values(one)), folder=embedder, **options)
        return found

    return start


async def post(client: Any, body: dict[str, Any], path: str = "/v1/embeddings") -> tuple[int, Any]:
    answer = await client.post(path, json=body)
    return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("ab", [[67, 68]]),
        (["ab", "c"], [[67, 68], [69]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
@claim(
    "Embeddings are given for a text, texts, token ids and lists of token ids, in their order",
    of="embeddings",
)
async def test_every_form_of_input(embed: Any, given: Any, prompts: list[list[int]]) -> None:
    client, port = await embed()
    status, body = await post(client, {"input": given})
    assert status == 200
    assert [stream.generation.prompt for stream in port.streams] == prompts
    assert [entry["embedding"] for entry in body["data"]] == [[len(one), one[0], 0.5] for one in prompts]
    assert [entry["index"] for entry in body["data"]] == list(range(len(prompts)))
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}}
    assert (body["object"], body["model"], body["usage"]) == ("list", "tiny", usage)
    assert port.streams[0].generation.sampling.pooling == Pooling(modes=["mean"], normalize=True)
    assert port.streams[0].generation.max_tokens == 0


async def test_base64_and_dimensions(embed: Any) -> None:
    client, port = await embed()
    status, body = await post(client, {"input": "ab", "encoding_format": "base64", "dimensions": 3})
    assert status == 200
    raw = base64.b64decode(body["data"][0]["embedding"])
    assert struct.unpack("<3f", raw) == (2.0, 67.0, 0.5)
    assert port.streams[0].generation.sampling.pooling == Pooling(modes=["mean"], normalize=True, dimensions=3)


async def test_prompts_of_the_checkpoint(embed: Any, codec: Any) -> None:
    client, port = await embed()
    for name, before in (("query", "find: "), ("document", ""), ("", ""), (None, "")):
        await post(client, {"input": "ab", "prompt_name": name})
        assert port.streams[-1].generation.prompt == codec.encode(before + "ab", special=True)
    status, body = await post(client, {"input": "ab", "prompt_name": "passage"})
    assert (status, body["error"]["param"]) == (400, "prompt_name")
    assert "the prompts of tiny are: 'query', 'document'; name one of them" in body["error"]["message"]
    status, body = await post(client, {"input": [5, 6], "prompt_name": "query"})
    assert (status, body["error"]["param"]) == (400, "prompt_name")


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "none of them empty"),
        ({"input": [[]]}, "input", "none of them empty"),
        ({"input": [""]}, "input", "input has no tokens"),
        ({"input": ["a", ""]}, "input[1]", "input[1] has no tokens"),
        ({"input": ["a", 3]}, "input", "give a string, a list of strings"),
        ({"input": {"text": "a"}}, "input", "give a string, a list of strings"),
        ({"input": "a" * 65}, "input", f"input has 65 tokens, but the context of tiny holds {MAX_LENGTH}; shorten it"),
        ({"input": [[5], [5] * 65]}, "input[1]", "input[1] has 65 tokens"),
        ({"input": [269]}, "input", "token id 269 is not in the vocabulary; give ids from 0 to 268"),
        ({"input": [-1]}, "input", "token id -1 is not in the vocabulary"),
        ({"input": ["a"] * 2049}, "input", "input has 2,049 texts; a request takes 2,048 at most"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions is 0; give an integer from 1"),
        ({"input": "a", "dimensions": 9}, "dimensions", "dimensions is 9, but a vector of tiny has 8 numbers; lower it"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "give one of float, base64"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "which leaves no text"),
        ({"input": "a", "n": 2}, "n", "no token is drawn for a vector; leave it out"),
        ({"input": "a", "stream": True}, "stream", "no token is drawn for a vector"),
        ({"input": "a", "draft": "prompt"}, "draft", "no token is drawn for a vector"),
        ({"input": "a", "quality": "low"}, "quality", "no token is drawn for a vector"),
        ({"input": "a", "temperature": 0.5}, "temperature", "no token is drawn for a vector"),
        (
            {"input": "a", "messages": [{"role": "user", "content": "a"}]},
            "messages",
            "the chat template is applied to no text",
        ),
        ({"input": "a", "input_type": "query"}, "input_type", "it is called prompt_name here"),
        ({"input": "a", "lora_name": "x"}, "lora_name", "an adapter is a model here"),
        ({"input": "a", "model": "none"}, "model", "the model 'none' does not exist"),
    ],
)
@claim("A field that would change a vector and is not served is refused by name, value and remedy", of="embeddings")
async def test_bad_input(embed: Any, body: dict[str, Any], param: str, said: str) -> None:
    client, port = await embed()
    status, answer = await post(client, body)
    assert status == (404 if "model" in body else 400)
    assert answer["error"]["param"] == param
    assert said in answer["error"]["message"]
    assert not port.streams


async def test_a_text_may_fill_the_context_and_longer_ones_be_truncated(embed: Any) -> None:
    client, port = await embed()
    assert (await post(client, {"input": "a" * MAX_LENGTH}))[0] == 200
    assert (await post(client, {"input": [*range(5, 75)], "truncate_prompt_tokens": -1}))[0] == 200
    assert port.streams[-1].generation.prompt == [*range(11, 75)]
    assert (await post(client, {"input": [*range(5, 75)], "truncate_prompt_tokens": 3}))[0] == 200
    assert port.streams[-1].generation.prompt == [72, 73, 74]


async def test_models_that_do_something_else(serve: Any, folder: Path) -> None:
    client, port = await serve(lambda generation: vector_given([1.0]))
    status, body = await post(client, {"input": "a"})
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "unsupported_model", "model")
    assert body["error"]["message"].startswith("tiny generates text and gives no vectors; name an embedder")
    assert not port.streams


@claim("An embedder that is asked for text answers 400 with the endpoint for vectors", of="embeddings")
async def test_an_embedder_generates_nothing(embed: Any) -> None:
    client, port = await embed()
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        status, answer = await post(client, body, path)
        assert (status, answer["error"]["code"]) == (400, "unsupported_model")
        assert "tiny is an embedder and generates no text; send texts to POST /v1/embeddings" in answer["error"]["message"]
    assert not port.streams


async def test_many_texts_run_some_at_a_time(embed: Any) -> None:
    """All begin at last, in order, and their vectors stay apart."""
    client, port = await embed(lambda one: [float(one.prompt[0])])
    status, body = await post(client, {"input": [[5 + i % 200] for i in range(2048)]})
    assert status == 200
    assert [entry["embedding"] for entry in body["data"]] == [[5.0 + i % 200] for i in range(2048)]
    assert len({stream.generation.id for stream in port.streams}) == 2048
    assert all(stream.cancelled.is_set() for stream in port.streams)


async def test_the_first_failure_ends_the_others(serve: Any, embedder: Path) -> None:
    gate = asyncio.Event()

    def script(generation: Generation) -> Any:
        broken = RequestRefused(Refusal.BROKEN, "the activations of the model overflow")
        return [broken] if generation.prompt == [9] else [gate]

    client, port = await serve(script, folder=embedder)
    status, body = await post(client, {"input": [[5], [6], [9]]})
    assert (status, body["error"]["code"]) == (500, "model_overflow")
    assert [stream.cancelled.is_set() for stream in port.streams] == [True] * 3


async def test_a_refusal_names_no_field_of_answers(serve: Any, embedder: Path) -> None:
    sentence = admit(9, 8)
    assert sentence is not None
    client, _ = await serve(lambda generation: [RequestRefused(Refusal.TOO_LONG, sentence)], folder=embedder)
    status, body = await post(client, {"input": [[5]]})
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert "memory for 8; shorten the prompt, or give" in body["error"]["message"]


async def test_a_client_that_leaves_cancels_its_sequences(serve: Any, embedder: Path) -> None:
    gate = asyncio.Event()
    client, port = await serve(lambda generation: [gate], folder=embedder)
    asked = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a", "b"]}))
    for _ in range(2):
        await port.waiting.get()
    asked.cancel()
    await asyncio.gather(*(stream.cancelled.wait() for stream in port.streams))


async def test_it_is_counted_and_charged(embed: Any) -> None:
    client, port = await embed()
    await post(client, {"input": ["abc", "d"], "user": "me", "service_tier": "flex", "unknown": 1})
    text = await (await client.get("/metrics")).text()
    assert 'vllm:prompt_tokens_total{model_name="tiny"} 4.0' in text
    assert 'vllm:generation_tokens_total{model_name="tiny"} 0.0' in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 2.0' in text
    assert port.settled == [] or port.settled[-1][1:] == (4, 4)
    assert {stream.generation.priority for stream in port.streams} != {0}
    answer = await client.post("/v1/embeddings", json={"input": "a", "unknown": 1})
    assert answer.headers["x-ignored-fields"] == "unknown"


async def test_a_program_gets_numbers(embed: Any) -> None:
    from blockwright.api.program.blocking import BlockingSession
    from blockwright.api.program.client import Client

    client, port = await embed()
    url = str(client.make_url("/"))
    async with Client(url) as session:
        assert await session.embed("ab", dimensions=2) == (2.0, 67.0, 0.5)
        assert await session.embed(["ab", [9], "c"]) == [(2.0, 67.0, 0.5), (1.0, 9.0, 0.5), (1.0, 69.0, 0.5)]
        assert await session.embed([]) == []
        with pytest.raises(TypeError, match="there is no option 'dimension'; did you mean dimensions"):
            await session.embed("a", dimension=2)  # type: ignore[call-overload]

    def blocking() -> Any:
        with BlockingSession(Client(url)) as session:
            return session.embed("ab"), session.embed(["c"])

    assert await asyncio.to_thread(blocking) == ((2.0, 67.0, 0.5), [(1.0, 69.0, 0.5)])
    assert json.dumps(port.streams[0].generation.stop_tokens) == "[]"

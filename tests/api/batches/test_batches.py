"""``/v1/batches`` over HTTP, and the runner behind it, over a fake gateway port."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.batches.lines import LONG
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests import embedders
from blockwright.tests.api.batches.batch_rig import URL, BatchRig, Start, held, line, parts
from blockwright.tests.api.fake_port import MAX_LENGTH, make_folder, vector_given
from blockwright.tests.claims import claim
from blockwright.tests.waiting import until


@claim("Files and batches of the OpenAI API work with the official client", of="offline", headline=True)
async def test_a_batch_from_file_to_files(start: Start, say: Any) -> None:
    rig, port = await start(say("the end"))
    id = await rig.create([line("a"), line("b", n=2), line("c", logprobs=None)], metadata={"of": "me"})
    batch = await rig.ended(id)
    assert (batch["status"], batch["error_file_id"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert (batch["endpoint"], batch["model"], batch["metadata"], batch["errors"]) == (URL, "tiny", {"of": "me"}, None)
    times = [batch[f"{name}_at"] for name in ("in_progress", "finalizing", "completed")]
    assert all(times)
    assert batch["expires_at"] == batch["created_at"] + 24 * 3600
    found = await rig.lines(batch["output_file_id"])
    assert found.keys() == {"a", "b", "c"}
    response = found["b"]["response"]
    assert (response["status_code"], found["b"]["error"]) == (200, None)
    assert [choice["text"] for choice in response["body"]["choices"]] == ["the end"] * 2
    assert response["request_id"] == response["body"]["id"]
    usage = [one["response"]["body"]["usage"] for one in found.values()]
    assert batch["usage"]["input_tokens"] == sum(one["prompt_tokens"] for one in usage)
    assert batch["usage"]["output_tokens"] == sum(one["completion_tokens"] for one in usage)
    assert all(stream.generation.offline and stream.generation.home == "w0" for stream in port.streams)
    figures = batch["blockwright"]
    assert (figures["models"]["tiny"]["done"], figures["remaining_seconds"]) == (3, 0.0)
    async with rig.client.get("/metrics") as answer:
        lines = dict(one.rsplit(" ", 1) for one in (await answer.text()).splitlines() if not one.startswith("#"))
    label = '{model_name="tiny"}'
    assert float(lines[f"vllm:generation_tokens_total{label}"]) == batch["usage"]["output_tokens"]
    assert float(lines[f"vllm:time_to_first_token_seconds_count{label}"]) == 0, "nobody waited for them"
    assert float(lines[f"vllm:e2e_request_latency_seconds_count{label}"]) == 0
    _, page = await rig.ask("GET", "/v1/batches?limit=5")
    assert (page["data"], page["has_more"]) == ([batch], False)


async def test_a_batch_of_vectors(start: Start, tmp_path: Path) -> None:
    pooling = {"embedding_dimension": 8, "pooling_mode": "mean"}
    folder = embedders.write_modules(make_folder(tmp_path / "embedder"), "pooling", pooling=pooling)
    rig, port = await start(lambda one: vector_given([len(one.prompt), 0.5]), folder=folder)
    url = "/v1/embeddings"
    asked = [{"input": "abc"}, {"input": [[5], [6, 7]], "encoding_format": "base64"}, {"input": "x" * 99}, {"prompt": "a"}]
    requests = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, body in enumerate(asked)]
    batch = await rig.ended(await rig.create([json.dumps(one).encode() + b"\n" for one in requests], endpoint=url))
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    found = await rig.lines(batch["output_file_id"]) | await rig.lines(batch["error_file_id"])
    for index, body in enumerate(asked):
        status, answer = await rig.ask("POST", url, json=body)
        response = found[str(index)]["response"]
        assert response["status_code"] == status
        assert response["body"].get("data") == answer.get("data")
        assert response["body"].get("error") == answer.get("error")
    assert (batch["usage"]["input_tokens"], batch["usage"]["output_tokens"]) == (6, 0)
    assert [stream.generation.offline for stream in port.streams[:3]] == [True] * 3


@claim("Lines of a batch are answered as the HTTP endpoints answer them", of="offline")
async def test_answers_are_what_http_says(start: Start, say: Any) -> None:
    """The same code: bodies are equal but for ids and times, refusals word for word."""
    rig, _ = await start(say("the end"))
    asked = [
        {"model": "tiny", "prompt": "once", "max_tokens": 3, "temperature": 0, "n": 2, "stop": ["d"], "unheard": 1},
        {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 3, "seed": 7, "echo": True, "return_token_ids": True},
        {"model": "tiny", "prompt": "x" * 200, "max_tokens": 9},
        {"model": "none", "prompt": "x"},
        {"model": "tiny", "prompt": "x", "temperature": 9},
        {"model": "tiny", "prompt": "x", "tools": [{}]},
        {"prompt": [999_999]},
        {"model": "tiny"},
    ]
    requests = [{"custom_id": str(i), "method": "POST", "url": URL, "body": body} for i, body in enumerate(asked)]
    batch = await rig.ended(await rig.create([json.dumps(one).encode() + b"\n" for one in requests]))
    found = await rig.lines(batch["output_file_id"]) | await rig.lines(batch["error_file_id"])
    assert batch["request_counts"] == {"total": 8, "completed": 2, "failed": 6}

    def comparable(body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name not in ("id", "created")}

    for index, body in enumerate(asked):
        status, answer = await rig.ask("POST", URL, json=body)
        response = found[str(index)]["response"]
        assert (response["status_code"], comparable(response["body"])) == (status, comparable(answer)), body
    assert found["0"]["response"]["ignored_fields"] == ["unheard"]


@claim("A wrong line gets its error, and the batch goes on", of="offline")
async def test_lines_that_are_no_requests_get_their_errors_and_the_batch_goes_on(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    lines = [
        line("a"),
        b'{"custom_id": "torn", "met\n',
        b"\n",
        line("a"),
        line("get", method="GET"),
        line("other", url="/v1/chat/completions"),
        line("nowhere", url="/v1/rerank"),
        line("streamed", stream=True),
        line(7),
        b'{"custom_id": "bare", "method": "POST", "url": "/v1/completions"}\n',
        b'["a list"]\n',
        line("b"),
    ]
    batch = await rig.ended(await rig.create(lines))
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 11, "completed": 2, "failed": 9})
    assert len(port.streams) == 2
    values = {one["line"]: (one["code"], one["param"]) for one in batch["errors"]["data"]}
    assert values == {
        2: ("invalid_json_line", None),
        4: ("duplicate_custom_id", "custom_id"),
        5: ("invalid_method", "method"),
        6: ("mismatched_url", "url"),
        7: ("invalid_url", "url"),
        9: ("invalid_custom_id", "custom_id"),
        10: ("invalid_body", "body"),
        11: ("invalid_json_line", None),
    }
    async with rig.client.get(f"/v1/files/{batch['error_file_id']}/content") as answer:
        errors = [json.loads(one) for one in (await answer.text()).splitlines()]
    said = {one["custom_id"]: one["error"]["message"] for one in errors if one["error"] and one["custom_id"]}
    assert said["a"] == "custom_id 'a' is on line 1 already; give each its own"
    assert said["other"].startswith("url is /v1/chat/completions, but the batch's endpoint is /v1/completions")
    streamed = next(one for one in errors if one["custom_id"] == "streamed")
    assert (streamed["response"]["status_code"], streamed["response"]["body"]["error"]["param"]) == (400, "stream")


async def test_a_file_without_a_single_request_fails(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    batch = await rig.ended(await rig.create([line("a", method="PUT"), b'{"a": 1}\n']))
    assert (batch["status"], len(batch["errors"]["data"]), port.streams) == ("failed", 2, [])
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["failed_at"]
    status, body = await rig.ask("POST", f"/v1/batches/{batch['id']}/cancel")
    assert (status, body["error"]["code"]) == (409, "conflict")
    assert "is failed; there is nothing left to cancel" in body["error"]["message"]


async def test_cancel_stops_what_runs_and_keeps_what_is_done(start: Start) -> None:
    rig, port = await start(held([]))
    id = await rig.create([line(str(i)) for i in range(9)])

    async def begun() -> bool:
        await rig.ref.look()
        return (await rig.view(id))["request_counts"]["completed"] == 1 and len(port.streams) > 2

    await until(begun)
    status, batch = await rig.ask("POST", f"/v1/batches/{id}/cancel")
    assert (status, batch["status"]) == (200, "cancelling")
    batch = await rig.ended(id)
    assert (batch["status"], batch["request_counts"]) == ("cancelled", {"total": 9, "completed": 1, "failed": 8})
    assert [stream.cancelled.is_set() for stream in port.streams] == [False] + [True] * (len(port.streams) - 1)
    errors = await rig.lines(batch["error_file_id"])
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert errors.keys() | (await rig.lines(batch["output_file_id"])).keys() == {str(i) for i in range(9)}
    assert (await rig.ask("POST", f"/v1/batches/{id}/cancel"))[1] == batch, "twice is once"


async def test_what_is_not_answered_in_its_time_expires(start: Start) -> None:
    rig, _ = await start(held([]))
    id = await rig.create([line(str(i)) for i in range(4)], completion_window="5m")
    rig.time = (await rig.view(id))["created_at"]

    async def begun() -> bool:
        await rig.ref.look()
        return (await rig.view(id))["request_counts"]["completed"] == 1

    await until(begun)
    rig.time += 300
    batch = await rig.ended(id)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("expired", 1)
    assert batch["expired_at"]
    assert {one["error"]["code"] for one in (await rig.lines(batch["error_file_id"])).values()} == {"batch_expired"}


async def test_another_runner_goes_on_and_computes_nothing_again(start: Start, serve: Any, say: Any, tmp_path: Path) -> None:
    rig, port = await start(held([]))
    id = await rig.create([line(str(i)) for i in range(6)])

    async def begun() -> bool:
        await rig.ref.look()
        return (await rig.view(id))["request_counts"]["completed"] == 1 and len(port.streams) > 2

    await until(begun)
    client, second = await serve(say("again"), settings={"batch_dir": str(tmp_path)})
    other = BatchRig(client)
    await other.start()
    await other.ref.look()
    assert second.streams == [], "one at a time"
    await rig.stop()
    batch = await other.ended(id)
    assert (batch["status"], batch["request_counts"]["completed"], len(second.streams)) == ("completed", 6, 5)
    assert len(await other.lines(batch["output_file_id"])) == 6
    await other.stop()


async def test_what_has_no_room_now_is_asked_again(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "no worker", 2.0)
    id = await rig.create([line("a"), line("b")])

    async def refused() -> bool:
        await rig.ref.look()
        return (await rig.view(id))["status"] == "in_progress"

    await until(refused)
    port.refuse = None

    async def ended() -> bool:
        rig.clock.advance(3.0)
        await rig.ref.look()
        return (await rig.view(id))["status"] == "completed"

    await until(ended)
    assert (await rig.view(id))["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


async def test_a_file_as_vllms_run_batch_takes_it(start: Start, say: Any) -> None:
    """The shapes of its own tests: system and user messages, an empty line, a model and a url that do not exist, stream."""
    rig, _ = await start(say("hello"))
    chat = "/v1/chat/completions"

    def asked(id: str, url: str = chat, model: str = "tiny", **more: Any) -> bytes:
        messages = [{"role": "system", "content": "Be helpful."}, {"role": "user", "content": "Hello world!"}]
        body = {"model": model, "messages": messages, "max_completion_tokens": 5, **more}
        return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body}).encode() + b"\n"

    lines = [asked("1"), asked("2", max_tokens=5), b"\n", asked("3", model="NonExistModel"), asked("4", url="/bad_url")]
    batch = await rig.ended(await rig.create([*lines, asked("5", stream=True)], endpoint=chat))
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 5, "completed": 2, "failed": 3})
    found, failed = await rig.lines(batch["output_file_id"]), await rig.lines(batch["error_file_id"])
    assert {one["response"]["body"]["choices"][0]["message"]["content"] for one in found.values()} == {"hello"}
    assert {id: one["response"] and one["response"]["status_code"] for id, one in failed.items()} == {
        "3": 404,
        "4": None,
        "5": 400,
    }
    assert failed["4"]["error"]["code"] == "invalid_url"


async def test_a_batch_of_responses(start: Start, say: Any) -> None:
    rig, _ = await start(say("hello"))
    url = "/v1/responses"

    def asked(id: str, **more: Any) -> bytes:
        body = {"model": "tiny", "input": "Hello world!", **more}
        return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body}).encode() + b"\n"

    lines = [asked("1"), asked("2", text={"verbosity": "low"}), asked("3", background=True), asked("4", stream=True)]
    batch = await rig.ended(await rig.create(lines, endpoint=url))
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    found, failed = await rig.lines(batch["output_file_id"]), await rig.lines(batch["error_file_id"])
    assert {one["response"]["body"]["output"][0]["content"][0]["text"] for one in found.values()} == {"hello"}
    assert found["2"]["response"]["ignored_fields"] == ["text.verbosity"]
    assert {id: one["response"]["body"]["error"]["param"] for id, one in failed.items()} == {
        "3": "background",
        "4": "stream",
    }


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (
            {"endpoint": "/v1/rerank"},
            "endpoint",
            "give one of /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings",
        ),
        ({"completion_window": "31d"}, "completion_window", "give 24h, or another time up to 30d"),
        ({"completion_window": "0h"}, "completion_window", "give 24h"),
        ({"completion_window": 24}, "completion_window", "give 24h"),
        ({"input_file_id": "file-none"}, "input_file_id", "there is no file 'file-none'; send one to /v1/files"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "metadata has 17 pairs; give at most 16"),
        ({"metadata": {"a": 1}}, "metadata.a", "give a string"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after", "both anchor and seconds"),
    ],
)
async def test_fields_of_a_batch_are_checked(start: Start, say: Any, fields: Any, param: str, says: str) -> None:
    rig, _ = await start(say("x"))
    _, file = await rig.upload(line("a"))
    body = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h", **fields}
    status, answer = await rig.ask("POST", "/v1/batches", json=body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert says in answer["error"]["message"]


async def test_what_can_never_be_answered_is_an_error_of_the_line(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "model 'm' cannot be loaded: it is too large")
    batch = await rig.ended(await rig.create([line("a")]))
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    (failed,) = (await rig.lines(batch["error_file_id"])).values()
    assert failed["response"]["status_code"] == 503
    assert "it is too large" in failed["response"]["body"]["error"]["message"]


async def test_a_model_that_fails_to_load_is_waited_for_and_then_the_line_has_the_reason(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    said = "model 'tiny' cannot be loaded: a tensor is damaged"
    numbers = count(1)
    waits = set[str]()

    async def ended() -> bool:
        port.refuse = RequestRefused(Refusal.UNAVAILABLE, said, 5.0, failure=next(numbers))
        rig.clock.advance(100.0)
        await rig.ref.look()
        found = await rig.view(id)
        waits.update(one["waits"] for one in found["blockwright"].get("models", {}).values())
        return found["status"] == "completed"

    port.refuse = RequestRefused(Refusal.UNAVAILABLE, said, 5.0, failure=99)
    id = await rig.create([line(name) for name in "abc"])
    await until(ended)
    assert next(numbers) > 5, "it is given time"
    assert said in waits
    batch = await rig.view(id)
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
    responses = [one["response"] for one in (await rig.lines(batch["error_file_id"])).values()]
    assert {(one["status_code"], one["body"]["error"]["message"]) for one in responses} == {(503, said)}


async def test_a_batchs_output_is_no_input_and_its_input_stays(start: Start, say: Any, tmp_path: Path) -> None:
    rig, port = await start(say("x"))
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "no worker", 60.0)
    id = await rig.create([line("a")], output_expires_after={"anchor": "created_at", "seconds": 3600})
    input = (await rig.view(id))["input_file_id"]
    status, body = await rig.ask("DELETE", f"/v1/files/{input}")
    assert (status, body["error"]["code"], id in body["error"]["message"]) == (409, "conflict", True)
    await rig.ask("POST", f"/v1/batches/{id}/cancel")
    batch = await rig.ended(id)
    output = batch["error_file_id"]
    create = {"input_file_id": output, "endpoint": URL, "completion_window": "24h"}
    status, body = await rig.ask("POST", "/v1/batches", json=create)
    assert (status, "of purpose batch" in body["error"]["message"]) == (400, True)
    assert (await rig.ask("DELETE", f"/v1/files/{input}"))[0] == 200
    _, file = await rig.ask("GET", f"/v1/files/{output}")
    assert file["expires_at"] == batch["created_at"] + 3600
    rig.time = file["expires_at"]
    await rig.ref.look()
    assert parts(tmp_path) == []


@claim("Tenants see only their own files and batches", of="offline")
async def test_tenants_see_their_own_batches_and_use_their_own_models(start: Start, say: Any) -> None:
    keys = {
        "api_keys": {"k1": "acme", "k2": "free"},
        "tenant_models": {"free": "org/other"},
        "app_roots": "/nowhere",
        "requests_per_minute": {"*": 1},
    }
    rig, port = await start(say("x"), settings=keys, key="k1")
    other = BatchRig(rig.client, "k2")
    id = await rig.create([line("a"), line("b"), line("c")])
    assert (await other.ask("GET", f"/v1/batches/{id}"))[0] == 404
    assert (await other.ask("POST", f"/v1/batches/{id}/cancel"))[0] == 404
    assert (await other.ask("GET", "/v1/batches"))[1]["data"] == []
    assert (await rig.ended(id))["request_counts"]["completed"] == 3, "limits count no lines"
    assert {stream.generation.tenant for stream in port.streams} == {"acme"}
    _, cluster = await rig.ask("GET", "/admin/cluster")
    (use,) = [one for one in cluster["tenants"] if one["tenant"] == "acme"]
    assert (use["requests"]["started"], use["tokens"] > 3) == (3, True), "lines are use all the same"
    other.ref = rig.ref
    batch = await other.ended(await other.create([line("a"), line("b", model="org/other")]))
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (refused,) = (await other.lines(batch["error_file_id"])).values()
    assert refused["response"]["status_code"] == 403


async def test_long_lines_are_read_on_a_thread(start: Start, say: Any) -> None:
    rig, port = await start(say("x"))
    long = line("long", user="u" * 1000, prompt="once " + " " * LONG, truncate_prompt_tokens=3)
    batch = await rig.ended(await rig.create([long, long]))
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert len(port.streams[0].generation.prompt) == 3


async def test_lines_that_are_too_long_for_the_model(start: Start, say: Any) -> None:
    rig, _ = await start(say("x"))
    batch = await rig.ended(await rig.create([line("a"), line("long", prompt=[5] * MAX_LENGTH)]))
    (refused,) = (await rig.lines(batch["error_file_id"])).values()
    assert refused["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


async def test_the_runner_is_an_actor_that_lets_go_when_it_ends(start: Start, say: Any) -> None:
    rig, _ = await start(say("x"))
    await rig.ref.look()
    again = BatchRig(rig.client)
    assert rig.batch_service.claim(), "it is this process"
    await rig.stop()
    await again.start()
    assert (await again.ended(await again.create([line("a")])))["status"] == "completed"
    await again.stop()

"""What the openai package (1.x to 3.x) gets of files and batches: ``check_batches.py URL MODEL``. Prints what it checks."""

from __future__ import annotations

import json
import sys
import time

import openai

URL, MODEL = sys.argv[1:]
HELLO = [{"role": "user", "content": "Say hello."}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} openai {openai.__version__}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def lines(url: str, bodies: dict[str, dict]) -> bytes:
    made = [{"custom_id": id, "method": "POST", "url": url, "body": {"model": MODEL, **body}} for id, body in bodies.items()]
    return b"".join(json.dumps(one).encode() + b"\n" for one in made)


def ended(id: str):
    while (batch := client.batches.retrieve(id)).status in ("validating", "in_progress", "finalizing", "cancelling"):
        time.sleep(0.05)
    return batch


def results(file: str | None) -> dict:
    return {one["custom_id"]: one for one in map(json.loads, client.files.content(file).text.splitlines())} if file else {}


def files() -> None:
    data = lines(CHAT, {"a": {"messages": HELLO}})
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    check("files.create", (file.purpose, file.bytes, file.filename) == ("batch", len(data), "in.jsonl"))
    check("files.retrieve", client.files.retrieve(file.id).id == file.id)
    check("files.content", client.files.content(file.id).read() == data)
    after = {"anchor": "created_at", "seconds": 3600}
    other = client.files.create(file=("b.jsonl", data), purpose="batch", expires_after=after)
    check("files expires_after", other.expires_at == other.created_at + 3600)
    check("files.list", [one.id for one in client.files.list(limit=1, order="desc")][:2] == [other.id, file.id])
    check("files.wait_for_processing", client.files.wait_for_processing(file.id).status == "processed")
    check("files.delete", client.files.delete(other.id).deleted)
    for kind, code, call in (
        (openai.NotFoundError, "not_found", lambda: client.files.retrieve(other.id)),
        (openai.BadRequestError, "invalid_jsonl", lambda: client.files.create(file=("x", b"no json"), purpose="batch")),
        (openai.BadRequestError, "invalid_value", lambda: client.files.create(file=("x", data), purpose="fine-tune")),
    ):
        try:
            call()
        except kind as error:
            check(f"files {kind.__name__} {code}", error.code == code)
        else:
            check(f"files {kind.__name__} {code}", False)


def batches() -> None:
    greedy = {"temperature": 0, "max_tokens": 6}
    bodies = {f"chat {i}": {"messages": [{"role": "user", "content": f"Say {i}."}], **greedy} for i in range(6)}
    bodies["wrong"] = {"messages": []}
    input = client.files.create(file=("in.jsonl", lines(CHAT, bodies)), purpose="batch")
    batch = client.batches.create(input_file_id=input.id, endpoint=CHAT, completion_window="24h", metadata={"of": "check"})
    check("batches.create", (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"of": "check"}))
    batch = ended(batch.id)
    counts = batch.request_counts
    check("batches completed", (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 7, 6, 1))
    found, errors = results(batch.output_file_id), results(batch.error_file_id)
    check("batches files", (len(found), list(errors)) == (6, ["wrong"]))
    check("batches error file", errors["wrong"]["response"]["body"]["error"]["param"] == "messages")
    for id in ("chat 0", "chat 5"):
        answer = client.chat.completions.create(model=MODEL, **bodies[id])
        same = found[id]["response"]["body"]["choices"][0]["message"]["content"] == answer.choices[0].message.content
        check(f"batches answer of {id}", same)
    usage = sum(one["response"]["body"]["usage"]["total_tokens"] for one in found.values())
    outcome = batch.usage if isinstance(batch.usage, dict) else batch.usage.model_dump()  # 1.x does not know the field
    check("batches usage", outcome["total_tokens"] == usage and batch.model == MODEL)
    check("batches own key", batch.model_extra["blockwright"]["models"][MODEL]["done"] == 6)
    check("files.list of batches", batch.output_file_id in [one.id for one in client.files.list(purpose="batch_output")])
    text = lines(
        COMPLETIONS, {str(i): {"prompt": "once", "max_tokens": 4, "n": 2, "logprobs": 1, "seed": i} for i in range(3)}
    )
    input = client.files.create(file=("c.jsonl", text), purpose="batch")
    second = ended(client.batches.create(input_file_id=input.id, endpoint=COMPLETIONS, completion_window="24h").id)
    bodies = [one["response"]["body"] for one in results(second.output_file_id).values()]
    check("batches of completions", all(len(body["choices"]) == 2 and body["choices"][0]["logprobs"] for body in bodies))
    check("batches.list", [one.id for one in client.batches.list(limit=1)][:2] == [second.id, batch.id])
    long = lines(COMPLETIONS, {str(i): {"prompt": "once", "max_tokens": 400, "ignore_eos": True} for i in range(40)})
    input = client.files.create(file=("d.jsonl", long), purpose="batch")
    third = client.batches.create(input_file_id=input.id, endpoint=COMPLETIONS, completion_window="24h")
    check("batches.cancel", client.batches.cancel(third.id).status in ("cancelling", "cancelled"))
    check("batches cancelled", ended(third.id).status == "cancelled")
    try:
        client.batches.cancel(batch.id)
    except openai.ConflictError as error:
        check("batches ConflictError", error.code == "conflict")
    else:
        check("batches ConflictError", False)


files()
batches()

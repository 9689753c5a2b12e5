"""Words and flags that users of vLLM, SGLang, llama.cpp and ollama type, and the equivalents here.

A flag with the name of a setting needs no entry: ``--set`` is suggested. Each command suggests only its own flags.
"""

from __future__ import annotations

from collections.abc import Collection

from ...policies.nearest import nearest

# A word in the place of a command -> the suggestion.
WORDS = {
    "run": "blockwright chat PATH_OR_HUB_ID loads a model and talks to it, blockwright serve PATH_OR_HUB_ID serves it",
    "pull": "a model of the hub is fetched when it is first served: blockwright serve owner/name",
    "list": "blockwright ps lists what a server serves, blockwright zoo list what a zoo holds",
    "ls": "blockwright ps lists what a server serves, blockwright zoo list what a zoo holds",
    "show": "blockwright zoo show shows a model of a zoo, blockwright ps the models of a server",
    "stop": "a server stops with Ctrl-C or SIGTERM; blockwright apps remove removes one model",
    "rm": "blockwright apps remove removes a model from a server, blockwright zoo remove from a zoo",
    "create": "there are no Modelfiles; blockwright zoo add keeps a model in a zoo, blockwright serve serves a folder",
    "launch_server": "blockwright serve PATH_OR_HUB_ID starts a server",
    "start": "blockwright serve PATH_OR_HUB_ID starts a server",
    "generate": "blockwright complete continues a prompt, blockwright chat answers a message",
    "run-batch": "blockwright batch run IN.jsonl -o OUT.jsonl --model PATH_OR_HUB_ID answers a file of requests",
}

_LENGTH = "--max-model-len N is the longest prompt and answer together"
_ROWS = "--set max_rows=N says how many sequences run at a time"
_MEMORY = "there is no GPU back end yet; --set memory=2GiB says how much each worker may take"
_CACHE = "equal prefixes of prompts are always cached; --set prefix_cache=no turns that off"
_ADAPTER = "an adapter is a model like any other: --app NAME=FOLDER beside its base"
_TOOLS = "tools are not supported yet"
_JSON = "structured output needs no flag: a request asks for it by response_format or structured_outputs"
_FLOAT = "quantized weights and KV are not supported yet; serve the checkpoint in float32, bfloat16 or float16"
_MODEL = "the checkpoint is given without a flag: blockwright serve PATH_OR_HUB_ID"
_NAME = "the model id is the folder's name, or NAME of --app NAME=PATH"
_LAYERS = "--set pipeline=N spreads a model over N workers, some layers on each"
_STAGES = "--set pipeline=N spreads a model over N of the --workers"
_REPLICAS = "--workers N are as many replicas"
_STEP = "--set sweep_tokens=N says how many tokens one step computes"
_CHUNK = "prompts are always computed in chunks; --set chunk_size=N says how large they are"
_THREADS = "--set threads=N says how many cores each worker uses"
_DRAFTS = "--set 'drafts.*=auto' drafts tokens by the text so far"
_DRAFT_MODEL = "--set drafts.NAME=MODEL drafts with another served model of the same vocabulary"
_DRAFT_TOKENS = "--set draft_tokens=N fixes the tokens drafted in a step"
_TEXT_ONLY = "only text is read and generated"
_TEMPLATE = "the chat template is the checkpoint's own"
_SAMPLING = "sampling belongs to each request, as a field of its body; what it leaves out is the checkpoint's default"
_ON = "this is always on; leave the flag out"
_ITSELF = "this is decided without you; leave the flag out"
_SERVE = {
    "--model": _MODEL, "-m": _MODEL, "--hf-repo": _MODEL, "-hf": _MODEL,
    "--model-path": _MODEL, "--served-model-name": _NAME, "--alias": _NAME,
    "--tensor-parallel-size": _LAYERS, "-tp": _LAYERS, "--tp": _LAYERS, "--tp-size": _LAYERS,
    "--pipeline-parallel-size": _STAGES, "-pp": _STAGES, "--pp": _STAGES, "--pp-size": _STAGES,
    "--data-parallel-size": _REPLICAS, "-dp": _REPLICAS, "--dp": _REPLICAS, "--dp-size": _REPLICAS,
    "--api-server-count": "--set gateways=N starts as many processes that answer HTTP",
    "--gpu-memory-utilization": _MEMORY, "--n-gpu-layers": _MEMORY, "-ngl": _MEMORY, "--gpus": _MEMORY,
    "--mem-fraction-static": _MEMORY, "--swap-space": _MEMORY, "--cpu-offload-gb": _MEMORY,
    "--quantization": _FLOAT, "-q": _FLOAT, "--kv-cache-dtype": _FLOAT, "--load-format": _FLOAT,
    "--cache-type-k": _FLOAT, "-ctk": _FLOAT, "--cache-type-v": _FLOAT, "-ctv": _FLOAT,
    "--ctx-size": _LENGTH, "-c": _LENGTH, "--num-ctx": _LENGTH, "--max-seq-len": _LENGTH, "--context-length": _LENGTH,
    "--max-num-seqs": _ROWS, "--parallel": _ROWS, "-np": _ROWS, "--num-parallel": _ROWS, "--max-running-requests": _ROWS,
    "--max-queued-requests": "--set max_waiting=N says how many requests the server takes",
    "--max-num-batched-tokens": _STEP, "--batch-size": _STEP, "-b": _STEP, "--max-prefill-tokens": _STEP,
    "--enable-chunked-prefill": _CHUNK, "--chunked-prefill-size": _CHUNK, "--ubatch-size": _CHUNK, "-ub": _CHUNK,
    "-t": _THREADS, "--num-thread": _THREADS, "--threads-batch": _THREADS, "-tb": _THREADS,
    "--block-size": "--set page_size=N is the number of tokens in a page of KV",
    "--enable-prefix-caching": _CACHE, "--no-enable-prefix-caching": _CACHE, "--disable-radix-cache": _CACHE,
    "--adapter": _ADAPTER, "--adapter-id": _ADAPTER, "--adapter-path": _ADAPTER, "--lora-adapters": _ADAPTER,
    "--enable-lora": _ADAPTER, "--lora-modules": _ADAPTER, "--lora": _ADAPTER, "--max-loras": _ADAPTER,
    "--lora-paths": _ADAPTER, "--max-lora-rank": _ADAPTER, "--lora-scaled": _ADAPTER,
    "--api-key": "keys are read from a file, where other users do not see them: --api-key-file FILE",
    "--ssl-keyfile": "--tls-key FILE is the same", "--ssl-certfile": "--tls-cert FILE is the same",
    "--ssl-key-file": "--tls-key FILE is the same", "--ssl-cert-file": "--tls-cert FILE is the same",
    "--allowed-origins": "--cors-origin ORIGINS is the same", "--uvicorn-log-level": "--set log_level=info is the same",
    "--verbose": "--set log_level=info logs every request and event", "-v": "--set log_level=info logs every request",
    "--log-requests": "--set log_level=info logs every request",
    "--enable-log-requests": "--set log_level=info logs every request",
    "--disable-log-requests": "requests are only logged with --set log_level=info",
    "--max-log-len": "prompts are never logged; leave the flag out",
    "--disable-log-stats": "throughput is only logged with --set log_level=info",
    "--metrics": "GET /metrics is always there; leave the flag out",
    "--enable-metrics": "GET /metrics is always there; leave the flag out",
    "--timeout": "--set request_timeout=SECONDS ends requests that take longer",
    "--tokenizer": "the tokenizer is the checkpoint's own",
    "--chat-template": _TEMPLATE, "--chat-template-file": _TEMPLATE,
    "--trust-remote-code": "code in checkpoints is never run; leave the flag out",
    "--revision": "a revision of the hub follows its id: owner/name@REVISION",
    "--seed": "a seed belongs to each request: its field 'seed'", "--random-seed": "a seed belongs to each request: 'seed'",
    "--temp": _SAMPLING, "--temperature": _SAMPLING, "--top-k": _SAMPLING, "--top-p": _SAMPLING, "--min-p": _SAMPLING,
    "--repeat-penalty": _SAMPLING, "--override-generation-config": _SAMPLING, "--generation-config": _SAMPLING,
    "--n-predict": "the length of an answer belongs to each request: its field 'max_tokens'",
    "-n": "the length of an answer belongs to each request: its field 'max_tokens'",
    "--enable-auto-tool-choice": _TOOLS, "--tool-call-parser": _TOOLS, "--jinja": _TOOLS,
    "--guided-decoding-backend": _JSON, "--structured-outputs-config": _JSON, "--grammar-backend": _JSON,
    "--grammar": _JSON, "--json-schema": _JSON,
    "--reasoning-parser": "reasoning is not parsed: an answer is the text that the model writes",
    "--reasoning-format": "reasoning is not parsed: an answer is the text that the model writes",
    "--speculative-config": _DRAFTS, "--speculative-algorithm": _DRAFTS, "--spec-type": _DRAFTS,
    "--num-speculative-tokens": _DRAFT_TOKENS, "--speculative-num-draft-tokens": _DRAFT_TOKENS,
    "--draft-max": _DRAFT_TOKENS, "--draft": _DRAFT_TOKENS,
    "--model-draft": _DRAFT_MODEL, "-md": _DRAFT_MODEL, "--speculative-draft-model-path": _DRAFT_MODEL,
    "--embedding": _TEXT_ONLY, "--embeddings": _TEXT_ONLY, "--is-embedding": _TEXT_ONLY, "--mmproj": _TEXT_ONLY,
    "--limit-mm-per-prompt": _TEXT_ONLY, "--reranking": _TEXT_ONLY,
    "--enforce-eager": "there are no CUDA graphs; leave the flag out",
    "--disable-cuda-graph": "there are no CUDA graphs; leave the flag out",
    "--cont-batching": _ON, "-cb": _ON, "--slots": "GET /v1/requests lists running and waiting requests",
    "--flash-attn": _ITSELF, "-fa": _ITSELF, "--attention-backend": _ITSELF, "--mlock": _ITSELF, "--no-mmap": _ITSELF,
    "--enable-torch-compile": _ITSELF, "--numa": _ITSELF, "--schedule-policy": _ITSELF, "--scheduling-policy": _ITSELF,
    "--distributed-executor-backend": _ITSELF, "--nnodes": "one server runs on one machine",
}  # fmt: skip

_ADDRESS = "the address is given without a flag: http://HOST:PORT"
_KEY = "the key is read from a file, where other users do not see it: --api-key-file FILE"
_TALK = {
    "--host": _ADDRESS, "--port": _ADDRESS, "--base-url": _ADDRESS, "--api-key": _KEY,
    "-m": "--model ID chooses a model of the server; a checkpoint folder is given without a flag",
    "--model-name": "--model ID is the same", "--temp": "--temperature X is the same",
    "-n": "--max-tokens N is the same", "--n-predict": "--max-tokens N is the same",
}  # fmt: skip
_CHAT = {
    "-p": "--message TEXT sends one message and exits", "--prompt": "--message TEXT sends one message and exits",
    "-q": "--message TEXT sends one message and exits", "--quick": "--message TEXT sends one message and exits",
    "-sys": "--system TEXT is the same", "--system-prompt": "--system TEXT is the same",
}  # fmt: skip
_COMPLETE = {"-p": "--prompt TEXT is the same", "-q": "--prompt TEXT is the same", "--quick": "--prompt TEXT is the same"}
_AT = "--url http://HOST:PORT says where the server listens"
_BENCH = {
    "--backend": "--endpoint completions or --endpoint chat says which API is measured",
    "--endpoint-type": "--endpoint completions or --endpoint chat says which API is measured",
    "--random-input-len": "--input-len N is the same", "--random-output-len": "--output-len N is the same",
    "--random-range-ratio": "--range-ratio X is the same", "--random-prefix-len": "--prefix-len N is the same",
    "--dataset-name": "prompts are random (--input-len), from a file (--prompts FILE) or from a trace (--trace FILE)",
    "--dataset-path": "--prompts FILE reads prompts, --trace FILE a published trace",
    "--ignore-eos": "answers have their full length unless --respect-eos is given; leave the flag out",
    "--save-result": "--json FILE stores the figures", "--result-filename": "--json FILE stores the figures",
    "--num-warmups": "--warmup N is the same", "--burstiness": "--arrival poisson or constant says how requests arrive",
    "--tokenizer": "the server tokenizes; leave the flag out", "--served-model-name": "--model ID is the same",
    "--percentile-metrics": "all figures are printed; leave the flag out",
    "--metric-percentiles": "mean, p50 and p99 are printed; leave the flag out",
}  # fmt: skip
NEAR = 0.75  # least similarity of a misspelt flag: long names are similar by chance

# A command is recognized by a positional argument, or by a flag that no other command has.
_BY_SIGN = {
    "PATH_OR_HUB_ID": _SERVE, "URL_OR_PATH": _TALK, "--message": _CHAT, "--prompt": _COMPLETE, "--num-prompts": _BENCH,
    "--url": {"--base-url": _AT, "--host": _AT, "--port": _AT, "--server": _AT, "--api-key": _KEY},
}  # fmt: skip


def hint(flag: str, value: str, known: Collection[str], places: Collection[str]) -> str:
    """Return a suggestion in place of a flag that is not ``known``, or an empty text if nothing is similar.

    ``value``: the word after it. ``places``: names of the command's positional arguments.
    """
    if not flag.startswith("-"):
        return f"another model is added by --app NAME={flag}" if "--app" in known else ""
    flag, _, inside = flag.partition("=")
    answers = {of: answer for sign, advice in _BY_SIGN.items() if sign in (*places, *known) for of, answer in advice.items()}
    if flag in answers:
        return answers[flag]
    given = f"={inside or value or '...'}"
    settings = _settings() if "--set" in known else []
    typed = flag.strip("-").replace("-", "").replace("_", "")
    for name in settings:
        if typed == name.replace("_", ""):
            return f"it is a setting: --set {name}{given}"
    near = {} if flag in _SERVE else {name.replace("_", "-"): f"did you mean --set {name}{given}?" for name in settings}
    near |= {one.strip("-"): answer for one, answer in answers.items() if one.startswith("--")}
    own = nearest(flag, known, NEAR)
    return f"did you mean {own}?" if own else near.get(nearest(flag.strip("-"), near, NEAR), "")


def _settings() -> list[str]:
    from ...actors.settings.settings import NAMES

    return NAMES

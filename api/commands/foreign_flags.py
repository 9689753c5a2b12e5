"""What people type who come from other servers: flags of vLLM, llama.cpp and ollama, and what does the same here.

A flag that is the name of a setting needs no entry: it is told as ``--set``.
"""

from __future__ import annotations

from typing import get_type_hints

_LENGTH = "--max-model-len N is the longest prompt and answer together"
_ROWS = "--set max_rows=N says how many sequences run at a time"
_MEMORY = "there is no GPU back end yet; --set memory=2GiB says how much each worker may take"
_CACHE = "equal prefixes of prompts are always cached; --set prefix_cache=no turns that off"
_ADAPTER = "an adapter is a model like any other: --app NAME=FOLDER beside its base"
_TOOLS = "tools are not supported yet"
_FLOAT = "quantised weights and KV are not supported yet; serve the checkpoint in float32, bfloat16 or float16"
_MODEL = "the checkpoint is given without a flag: blockwright serve PATH_OR_HUB_ID"
_ANSWERS = {
    "--model": _MODEL, "-m": _MODEL, "--hf-repo": _MODEL, "-hf": _MODEL,
    "--url": "the address is given without a flag: http://HOST:PORT",
    "--served-model-name": "the model id is the folder's name, or NAME of --app NAME=PATH",
    "--alias": "the model id is the folder's name, or NAME of --app NAME=PATH",
    "--tensor-parallel-size": "--set pipeline=N spreads a model over N workers, some layers on each",
    "-tp": "--set pipeline=N spreads a model over N workers, some layers on each",
    "--pipeline-parallel-size": "--set pipeline=N spreads a model over N of the --workers",
    "-pp": "--set pipeline=N spreads a model over N of the --workers",
    "--data-parallel-size": "--workers N are as many replicas", "-dp": "--workers N are as many replicas",
    "--gpu-memory-utilization": _MEMORY, "--n-gpu-layers": _MEMORY, "-ngl": _MEMORY,
    "--quantization": _FLOAT, "-q": _FLOAT, "--kv-cache-dtype": _FLOAT, "--cache-type-k": _FLOAT, "--load-format": _FLOAT,
    "--ctx-size": _LENGTH, "-c": _LENGTH, "--num-ctx": _LENGTH, "--max-seq-len": _LENGTH, "--context-length": _LENGTH,
    "--max-num-seqs": _ROWS, "--parallel": _ROWS, "-np": _ROWS, "--num-parallel": _ROWS, "--max-running-requests": _ROWS,
    "--max-num-batched-tokens": "--set sweep_tokens=N says how many tokens one step computes",
    "--batch-size": "--set sweep_tokens=N says how many tokens one step computes",
    "--block-size": "--set page_size=N is the number of tokens in a page of KV",
    "--enable-chunked-prefill": "prompts are always computed in chunks; --set chunk_size=N says how large they are",
    "--enable-prefix-caching": _CACHE, "--no-enable-prefix-caching": _CACHE, "--disable-radix-cache": _CACHE,
    "--enable-lora": _ADAPTER, "--lora-modules": _ADAPTER, "--lora": _ADAPTER, "--max-loras": _ADAPTER,
    "--api-key": "keys are read from a file, where other users do not see them: --api-key-file FILE",
    "--ssl-keyfile": "--tls-key FILE is the same", "--ssl-certfile": "--tls-cert FILE is the same",
    "--allowed-origins": "--cors-origin ORIGINS is the same", "--uvicorn-log-level": "--set log_level=info is the same",
    "--verbose": "--set log_level=info logs every request and event", "-v": "--set log_level=info logs every request",
    "--disable-log-requests": "requests are only logged with --set log_level=info",
    "--tokenizer": "the tokenizer is the checkpoint's own", "--chat-template": "the chat template is the checkpoint's own",
    "--trust-remote-code": "code in checkpoints is never run; leave the flag out",
    "--revision": "a revision of the hub follows its id: owner/name@REVISION",
    "--seed": "a seed belongs to each request: its field 'seed'",
    "--enable-auto-tool-choice": _TOOLS, "--tool-call-parser": _TOOLS, "--jinja": _TOOLS,
    "--enforce-eager": "there are no CUDA graphs; leave the flag out",
}  # fmt: skip


def hint(flag: str, value: str, known: list[str]) -> str:
    """What to type instead of a flag that is not ``known``; empty where nothing is like it.

    ``value``: the word behind it.
    """
    flag, _, inside = flag.partition("=")
    if answer := _ANSWERS.get(flag):
        return answer
    from blockwright.actors.config import Settings

    name = flag.lstrip("-").replace("-", "_")
    if "--set" in known and name in get_type_hints(Settings):
        return f"it is a setting: --set {name}={inside or value or '...'}"
    return ""

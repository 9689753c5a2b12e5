"""What people type who come from other servers: flags of vLLM, SGLang, llama.cpp and ollama, and what does the same here.

A flag that is the name of a setting needs no entry: it is told as ``--set``. Each command is told only what it has itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_type_hints

from blockwright.policies.nearest import nearest

_LENGTH = "--max-model-len N is the longest prompt and answer together"
_ROWS = "--set max_rows=N says how many sequences run at a time"
_MEMORY = "there is no GPU back end yet; --set memory=2GiB says how much each worker may take"
_CACHE = "equal prefixes of prompts are always cached; --set prefix_cache=no turns that off"
_ADAPTER = "an adapter is a model like any other: --app NAME=FOLDER beside its base"
_TOOLS = "tools are not supported yet"
_FLOAT = "quantised weights and KV are not supported yet; serve the checkpoint in float32, bfloat16 or float16"
_MODEL = "the checkpoint is given without a flag: blockwright serve PATH_OR_HUB_ID"
_NAME = "the model id is the folder's name, or NAME of --app NAME=PATH"
_LAYERS = "--set pipeline=N spreads a model over N workers, some layers on each"
_STAGES = "--set pipeline=N spreads a model over N of the --workers"
_REPLICAS = "--workers N are as many replicas"
_STEP = "--set sweep_tokens=N says how many tokens one step computes"
_ITSELF = "this is decided without you; leave the flag out"
_SERVE = {
    "--model": _MODEL, "-m": _MODEL, "--hf-repo": _MODEL, "-hf": _MODEL,
    "--model-path": _MODEL, "--served-model-name": _NAME, "--alias": _NAME,
    "--tensor-parallel-size": _LAYERS, "-tp": _LAYERS, "--tp": _LAYERS, "--tp-size": _LAYERS,
    "--pipeline-parallel-size": _STAGES, "-pp": _STAGES, "--pp": _STAGES, "--pp-size": _STAGES,
    "--data-parallel-size": _REPLICAS, "-dp": _REPLICAS, "--dp": _REPLICAS, "--dp-size": _REPLICAS,
    "--gpu-memory-utilization": _MEMORY, "--n-gpu-layers": _MEMORY, "-ngl": _MEMORY, "--gpus": _MEMORY,
    "--mem-fraction-static": _MEMORY, "--swap-space": _MEMORY, "--cpu-offload-gb": _MEMORY,
    "--quantization": _FLOAT, "-q": _FLOAT, "--kv-cache-dtype": _FLOAT, "--cache-type-k": _FLOAT, "--load-format": _FLOAT,
    "--ctx-size": _LENGTH, "-c": _LENGTH, "--num-ctx": _LENGTH, "--max-seq-len": _LENGTH, "--context-length": _LENGTH,
    "--max-num-seqs": _ROWS, "--parallel": _ROWS, "-np": _ROWS, "--num-parallel": _ROWS, "--max-running-requests": _ROWS,
    "--max-num-batched-tokens": _STEP, "--batch-size": _STEP, "-b": _STEP,
    "--chunked-prefill-size": "--set chunk_size=N says how many tokens of a prompt are computed at a time",
    "-t": "--set threads=N says how many cores the workers use",
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
    "--reasoning-parser": "reasoning is not parsed: an answer is the text that the model writes",
    "--speculative-config": "speculative decoding is not supported yet",
    "--model-draft": "speculative decoding is not supported yet", "-md": "speculative decoding is not supported yet",
    "--enforce-eager": "there are no CUDA graphs; leave the flag out",
    "--flash-attn": _ITSELF, "-fa": _ITSELF, "--attention-backend": _ITSELF, "--mlock": _ITSELF, "--no-mmap": _ITSELF,
}  # fmt: skip

_TALK = {"--url": "the address is given without a flag: http://HOST:PORT"}
_BY_PLACE = {"PATH_OR_HUB_ID": _SERVE, "URL_OR_PATH": _TALK}  # what a command is given without a flag -> its answers


def hint(flag: str, value: str, known: Collection[str], places: Collection[str]) -> str:
    """What to type instead of a flag that is not ``known``; empty where nothing is like it.

    ``value``: the word behind it; ``places``: the names of what the command is given without a flag.
    """
    flag, _, inside = flag.partition("=")
    answers = {of: answer for place in places for of, answer in _BY_PLACE.get(place, {}).items()}
    if flag in answers:
        return answers[flag]
    given = f"={inside or value or '...'}"
    settings = _settings() if "--set" in known else []
    typed = flag.strip("-").replace("-", "").replace("_", "")
    for name in settings:
        if typed == name.replace("_", ""):
            return f"it is a setting: --set {name}{given}"
    near = (
        {} if flag in _SERVE else {f"--{name.replace('_', '-')}": f"did you mean --set {name}{given}?" for name in settings}
    )
    near |= answers | {one: f"did you mean {one}?" for one in known}
    return near.get(nearest(flag, near), "")


def _settings() -> list[str]:
    from blockwright.actors.config import Settings

    return [*get_type_hints(Settings)]

"""litellm, langchain-openai and llm, unmodified: ``check_clients.py URL MODEL``. Prints what it has checked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # without it litellm asks the internet first
URL, MODEL = sys.argv[1:]
HELLO = [{"role": "user", "content": "Say hello."}]


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {name}", flush=True)
    if not holds:
        sys.exit(1)


def litellm_calls() -> None:
    import litellm

    for provider in ("hosted_vllm", "openai"):
        common = {
            "model": f"{provider}/{MODEL}",
            "api_base": f"{URL}/v1",
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 10,
        }
        whole = litellm.completion(messages=HELLO, **common)
        text = whole.choices[0].message.content
        check(f"litellm {provider}", isinstance(text, str) and whole.usage.completion_tokens > 0)
        chunks = litellm.completion(messages=HELLO, stream=True, stream_options={"include_usage": True}, **common)
        joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        check(f"litellm {provider} stream", joined == text)
    plain = litellm.text_completion(prompt="once", model=f"text-completion-openai/{MODEL}", api_base=f"{URL}/v1",
                                    api_key="none", max_tokens=4)  # fmt: skip
    check("litellm text completion", bool(plain.choices))
    try:
        litellm.completion(model="openai/none", api_base=f"{URL}/v1", api_key="none", messages=HELLO, num_retries=0)
    except litellm.NotFoundError:
        check("litellm NotFoundError", True)
    else:
        check("litellm NotFoundError", False)


def langchain_calls() -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    common = {
        "base_url": f"{URL}/v1",
        "api_key": "none",
        "model": MODEL,
        "temperature": 0,
        "max_tokens": 10,
        "max_retries": 0,
    }
    chat = ChatOpenAI(**common)
    text = chat.invoke("Say hello.").content
    check("langchain invoke", isinstance(text, str))
    check("langchain stream", "".join(chunk.content for chunk in chat.stream("Say hello.")) == text)
    check("langchain batch", [one.content for one in chat.batch(["Say hello."] * 3)] == [text] * 3)
    usage = ChatOpenAI(**common, stream_usage=True)
    check("langchain usage", any(chunk.usage_metadata for chunk in usage.stream("Say hello.")))
    check("langchain completion", isinstance(OpenAI(**common).invoke("once"), str))


def llm_calls() -> None:
    with tempfile.TemporaryDirectory() as folder:
        entry = f"- model_id: local\n  model_name: {MODEL}\n  api_base: {URL}/v1\n"
        Path(folder, "extra-openai-models.yaml").write_text(entry)
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        command = [str(Path(sys.executable).parent / "llm"), "-m", "local", "Say hello.", "-o", "max_tokens", "10"]
        for more in ([], ["--no-stream"]):
            done = subprocess.run(
                [*command, *more], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
            check(f"llm {' '.join(more) or 'stream'}", done.returncode == 0 and not done.stderr)


litellm_calls()
langchain_calls()
llm_calls()

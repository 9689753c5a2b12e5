"""Unmodified clients and load tools against a served demo checkpoint: what ``make compat`` runs.

Each suite has a virtual environment of its own under ``.compat/`` (its packages contradict each other's), made from
``requirements/NAME.txt``. A suite passes when all its commands exit with 0; one that does not install here is named with the
reason, and is no success. ``--only NAME`` (repeatable) runs some of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MODEL = "demo-checkpoint"
CHECKPOINT = ROOT / "examples" / MODEL
PLACE = ROOT / ".compat"
INSTALL_SECONDS = 900
SUITE_SECONDS = 600
START_SECONDS = 120
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
AIPERF = """aiperf profile -m {model} --url {host} --endpoint-type chat --streaming --concurrency 2 --request-count 8
    --tokenizer {tokenizer} --isl 32 --osl 16 --ui-type none --no-gpu-telemetry --extra-inputs ignore_eos:true
    --use-server-token-count --output-artifact-dir {reports}"""
INFERENCE_PERF = """load: {{type: constant, stages: [{{rate: 4, duration: 3}}]}}
api: {{type: completion, streaming: true}}
data: {{type: random, input_distribution: {{min: 8, max: 32, mean: 16, std_dev: 4, total_count: 64}},
  output_distribution: {{min: 4, max: 16, mean: 8, std_dev: 2, total_count: 64}}}}
server: {{type: vllm, model_name: {model}, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: {tokenizer}}}
storage: {{local_storage: {{path: {reports}}}}}
"""


@dataclass(frozen=True)
class Suite:
    """``commands``: words with ``{...}`` for what is known once the server runs; the first lies in the suite's ``bin``."""

    name: str
    commands: tuple[str, ...]
    python: tuple[int, int] = (3, 11)  # the oldest that its packages take
    tools: bool = False  # by a model whose chat template has tools, which the demo checkpoint's has not
    report: str = ""  # a file that the tool must leave in its folder of reports


OPENAI = ("python {here}/check_openai.py {url} {model}", "python {here}/check_batches.py {url} {model}")
SUITES = (
    Suite("clients", (*OPENAI, "python -W ignore {here}/check_clients.py {url} {model}")),
    Suite("openai1", OPENAI[1:]),
    Suite("openai3", OPENAI),
    Suite("responses2", ("python {here}/check_responses.py {url} {model}",), tools=True),
    Suite("agents", ("python {here}/check_agents.py {url} {model}",), tools=True),
    Suite("langchain", ("python -W ignore {here}/check_langchain.py {url} {model}",), tools=True),
    Suite(
        "schemathesis",
        (
            "schemathesis run {url}/openapi.json --phases examples,coverage,fuzzing -n 30 --generation-deterministic "
            f"--request-timeout 60 -c {CHECKS}",
        ),
    ),
    Suite("aiperf", (AIPERF,), report="profile_export_aiperf.json"),
    Suite(
        "inference-perf",
        ("inference-perf -c {reports}/config.yaml",),
        python=(3, 12),
        report="summary_lifecycle_metrics.json",
    ),
)


def interpreter(suite: Suite) -> str:
    """One that the suite's packages take: this one, or a newer one on PATH; empty where there is none."""
    if sys.version_info[:2] >= suite.python:
        return sys.executable
    major, minor = suite.python
    for name in (f"python{major}.{number}" for number in range(minor, minor + 4)):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            return path
    return ""


def environment(suite: Suite) -> Path:
    """The suite's ``bin``, its packages installed. Raises CalledProcessError."""
    folder, wanted = PLACE / suite.name, (HERE / "requirements" / f"{suite.name}.txt").read_text()
    stamp = folder / ".installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([interpreter(suite), "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
        subprocess.run([*install, str(HERE / "requirements" / f"{suite.name}.txt")], check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(wanted)
    return folder / "bin"


@contextlib.contextmanager
def server(checkpoint: Path) -> Iterator[str]:
    """The checkpoint on a free port; its URL. Nothing of it is left afterwards."""
    command = [sys.executable, "-m", "blockwright", "serve", str(checkpoint), "--port", "0", "--set", "memory=512MiB"]
    command += ["--set", f"batch_dir={PLACE / 'batches'}"]
    said = PLACE / f"{checkpoint.name}.log"
    log = said.open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=PLACE)
    try:
        yield _address(process, said)
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def tools_checkpoint() -> Path:
    """A random model whose chat template has tools."""
    folder = PLACE / "tools-model"
    if not folder.exists():
        make_checkpoint(folder, max_position_embeddings=8192)
        (folder / "chat_template.jinja").write_text(QWEN3)
    return folder


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Once the server is ready. Raises RuntimeError with what it said instead."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if ready := re.search(r"ready at (http://\S+)/v1", log.read_text()):
            return ready[1]
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {log.read_text()}")


def run(suite: Suite, url: str, model: str) -> str:
    """Empty when all went well, else why not."""
    if not interpreter(suite):
        return f"not run: it needs Python {'.'.join(map(str, suite.python))} or newer, and none is on PATH"
    try:
        folder = environment(suite)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"not run: it does not install here ({error})"
    reports = PLACE / "reports" / suite.name
    reports.mkdir(parents=True, exist_ok=True)
    known = {
        "url": url,
        "host": url.removeprefix("http://"),
        "model": model,
        "tokenizer": CHECKPOINT,
        "here": HERE,
        "reports": reports,
    }
    (reports / "config.yaml").write_text(INFERENCE_PERF.format(**known))
    began = time.time()
    for command in suite.commands:
        program, *words = command.format(**known).split()
        print(f"--- {suite.name}: {program} {' '.join(words)}", flush=True)
        try:
            done = subprocess.run(
                [str(folder / program), *words], cwd=reports, env=_variables(), timeout=SUITE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no end after {SUITE_SECONDS} s"
        if done.returncode:
            return f"{program} exited with {done.returncode}"
    made = [path for path in reports.rglob(suite.report) if path.stat().st_mtime >= began] if suite.report else [reports]
    return "" if made else f"left no {suite.report}"


def _variables() -> dict[str, str]:
    """Without what belongs to this environment's Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE", "VIRTUAL_ENV")}


@claim("The official openai client works unmodified", of="http-api", headline=True)
@claim("The agents of openai-agents call tools, hand off and answer in JSON through /v1/responses", of="http-api")
@claim("Structured output and tools of langchain-openai work unmodified", of="tools")
@claim("The clients litellm, langchain-openai, llm, aiperf and inference-perf work unmodified", of="http-api")
@claim("The API fuzzer schemathesis finds no server error and no undocumented answer", of="http-api")
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=[suite.name for suite in SUITES], default=[])
    only = parser.parse_args(arguments).only
    PLACE.mkdir(exist_ok=True)
    chosen = [suite for suite in SUITES if not only or suite.name in only]
    results = {}
    for tools in sorted({suite.tools for suite in chosen}):
        checkpoint = tools_checkpoint() if tools else CHECKPOINT
        with server(checkpoint) as url:
            results |= {suite.name: run(suite, url, checkpoint.name) for suite in chosen if suite.tools is tools}
    for name, reason in results.items():
        print(f"{name:15} {reason or 'passed'}")
    return int(any(reason for reason in results.values()))


if __name__ == "__main__":
    sys.exit(main())

"""transformers' ``generate`` as a process of its own, so that its memory and its start are separate, too.

Run by path with a checkpoint folder, it loads the model, then answers one JSON line on standard output for each JSON line
``{"prompts": [[...], ...], "tokens": N}`` on standard input. ``Peer`` is the other end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server import peak_rss_mb

THREADS_FLAG = "--threads"


class Peer:
    """A child process with the model; a static batch for each call."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder), THREADS_FLAG, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def generate(self, prompts: list[list[int]], tokens: int) -> float:
        """Greedy, exactly ``tokens`` new tokens for each prompt (all of one length); seconds that it took inside."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of transformers ended with status {self._process.wait()}")
        return float(json.loads(answer)["seconds"])

    def first_token(self) -> float:
        """Seconds from the start of the process to its first token; to be called first."""
        self.generate([[1, 2, 3]], 1)
        return time.monotonic() - self._began

    def peak_rss_mb(self) -> float:
        return peak_rss_mb(self._process.pid)

    def close(self) -> None:
        self._process.communicate("")


def answer(model: Any, request: dict[str, Any]) -> dict[str, float]:
    """Generate one static batch."""
    import torch

    model.generation_config.eos_token_id = None  # nothing ends early, at no cost for each token
    tokens_BT = torch.tensor(request["prompts"])
    count = request["tokens"]
    began = time.monotonic()
    made_BT = model.generate(
        tokens_BT,
        attention_mask=torch.ones_like(tokens_BT),
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
    )
    seconds = time.monotonic() - began
    if made_BT.shape[1] != tokens_BT.shape[1] + count:
        raise RuntimeError(f"asked for {count} tokens, got {made_BT.shape[1] - tokens_BT.shape[1]}")
    return {"seconds": seconds}


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder, _, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

"""The demo's checkpoint answers through the host code of the CUDA back end as through the torch reference."""

from __future__ import annotations

from pathlib import Path

from blockwright.gpu.select import open_backend
from blockwright.tests.claims import claim
from blockwright.tests.gpu.rig import Rig

DEMO = Path(__file__).parents[4] / "examples" / "demo-checkpoint"


@claim("The CUDA back end answers on a host without a card, token for token as the torch reference", of="numerics")
def test_the_demo_answers_the_same() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    prompt = tokenizer.encode("reverse: blocks =").ids
    ours, theirs = (
        Rig(open_backend(name, "float32", 1), DEMO).generate(0, prompt, 6, chunk=7) for name in ("cuda-mirror", "torch")
    )
    assert ours == theirs
    assert len(set(ours)) > 2

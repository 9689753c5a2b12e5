"""Reference log-probabilities of a bfloat16 checkpoint: the truth in float64, and transformers' result in bfloat16.

The truth is transformers' own model of the folder with all arithmetic in float64, on the stored weights exactly widened.
Everything that its code keeps in float32 (rotary angles, norms, softmax) is widened, too; a result of another type is an
error.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accuracy_models import quiet_transformers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Widened(TorchFunctionMode):
    """Code that asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        wide = [torch.float64 if value is torch.float32 else value for value in args]
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*wide, **named)


class NothingNarrow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every operation whose result is a floating type other than float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW:
                raise TypeError(f"{func} gave {leaf.dtype} where the truth is computed; widen it")
        return result


@contextmanager
def wide() -> Iterator[None]:
    """Everything inside is float64."""
    nothing_narrow = NothingNarrow()  # type: ignore[no-untyped-call]
    with Widened(), nothing_narrow:
        yield


class Truth:
    """A checkpoint in float64."""

    def __init__(self, folder: Path) -> None:
        auto = quiet_transformers().AutoModelForCausalLM
        stored = auto.from_pretrained(folder, dtype=torch.bfloat16)
        config = copy.deepcopy(stored.config)
        config._attn_implementation = "eager"  # plain products and a softmax
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with wide():
                self._model = auto.from_config(config, dtype=torch.float64).eval()
        finally:
            torch.set_default_dtype(before)
        self._model.load_state_dict({name: tensor.double() for name, tensor in stored.state_dict().items()})

    @torch.no_grad()
    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """float64 [tokens, vocabulary]."""
        with wide():
            logits = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return torch.log_softmax(logits, -1)


class Peer:
    """transformers' bfloat16, computed as transformers does by default."""

    def __init__(self, folder: Path) -> None:
        auto = quiet_transformers().AutoModelForCausalLM
        self._model = auto.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.no_grad()
    def logprobs(self, tokens: Sequence[int], given: int) -> torch.Tensor:
        """float64 [tokens, vocabulary]: ``tokens[:given]`` at once, the others one by one with its cache."""
        cache, found = None, []
        for piece in (list(tokens[:given]), *([token] for token in tokens[given:])):
            step = self._model(input_ids=torch.tensor([piece]), past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            found.append(step.logits[0].double())
        return torch.log_softmax(torch.cat(found), -1)

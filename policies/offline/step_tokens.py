"""The number of tokens that a step of an offline batch computes.

After BlendServe (section "Batch formation"): a multiple of 128, as kernels like it; decoding sequences come first, prompts
take the rest. The number follows the density of the whole batch: compute is to take ``target`` times as long as the step
reads KV, so that neither of the two waits for the other in any step, not only on average.
"""

from __future__ import annotations

from .density import Costs

MULTIPLE = 128
MOST = 2048  # limit of tokens of a step: the usual budget of chunked prefill


class StepTokens:
    """The step sizes of one batch.

    target: density that a step aims at; None: every step takes ``max_tokens``. weights: seconds of reading parameters once,
    during which tokens are free. Raises ValueError if ``max_tokens`` is below 128.
    """

    __slots__ = ("_carried", "_least", "_token", "max_tokens", "target")

    def __init__(self, costs: Costs, target: float | None, weights: float = 0.0, max_tokens: int = MOST) -> None:
        if max_tokens < MULTIPLE:
            raise ValueError(f"a step of an offline batch takes {max_tokens} tokens at most; give {MULTIPLE} or more")
        self.target, self.max_tokens = target, max_tokens
        self._token = costs.token
        self._least = max(int(weights / costs.token / MULTIPLE), 1) * MULTIPLE
        self._carried = 0.0  # tokens missing so far compared with the wanted number, by rounding

    def tokens(self, decoding: int, memory: float) -> int:
        """Return the tokens of the next step with ``decoding`` sequences, which reads KV for ``memory`` seconds.

        Rounded up or down so that the average is as wanted.
        """
        if self.target is None:
            return self.max_tokens
        wanted = min(max(self.target * memory / self._token, self._least, decoding), self.max_tokens)
        exact = wanted + self._carried
        rounded = max(int(exact / MULTIPLE + 0.5), 1) * MULTIPLE
        self._carried = min(max(exact - rounded, -MULTIPLE), MULTIPLE)
        return min(rounded, self.max_tokens)

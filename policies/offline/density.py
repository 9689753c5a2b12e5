"""The density of a request: its compute time divided by its memory time.

After BlendServe (section "Cost model"): a request computes its tokens' products and its prompt's attention, and reads its
own KV once for each token of its answer. Reading the parameters is left out, since a large batch shares it; so is the
arithmetic of attention in decoding, which reading hides. A prompt with a short answer is dense, a long answer is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.coefficients import Coefficients

DENSEST = 1e9  # density of a request with next to no memory time, so that densities are finite


def density(comp: float, mem: float) -> float:
    """Return ``comp / mem``, both in seconds, from 0 to ``DENSEST``; 1 if both are 0."""
    if comp <= 0.0:
        return 0.0 if mem > 0.0 else 1.0
    return comp / mem if comp < mem * DENSEST else DENSEST


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one machine with one model. Raises ValueError if one is negative, or ``token`` is 0.

    token: a token's pass through the parameters. attend: each of the p * p pairs of positions of a prompt of p tokens
    (BlendServe counts the whole square; where a kernel skips the masked half, this is half of a pair's time). read:
    reading one position's KV for one token of an answer. sample: choosing a token of an answer.
    """

    token: float
    attend: float
    read: float
    sample: float = 0.0

    def __post_init__(self) -> None:
        for name in ("token", "attend", "read", "sample"):
            if not 0.0 <= (value := getattr(self, name)) < 1e6 or (name == "token" and not value):
                raise ValueError(
                    f"{name} is {value!r} in the costs of offline requests; give seconds, 0 or more (token: more)"
                )

    @classmethod
    def of_model(
        cls,
        *,
        parameters: float,
        hidden: int,
        layers: int,
        kv_width: int,
        compute: float,
        bandwidth: float,
        value_bytes: int = 2,
    ) -> Costs:
        """Return the costs from sizes and peaks.

        parameters, hidden, layers: of the model. kv_width: values of K (and of V) of a position in a layer,
        ``value_bytes`` each. compute: FLOP/s. bandwidth: byte/s. Raises ValueError if a peak is 0.
        """
        if compute <= 0 or bandwidth <= 0:
            raise ValueError(f"compute is {compute:g} FLOP/s and bandwidth {bandwidth:g} byte/s; give both, above 0")
        attend = 4.0 * hidden * layers / compute
        return cls(2.0 * parameters / compute, attend, 2.0 * value_bytes * kv_width * layers / bandwidth)

    @classmethod
    def of_coefficients(cls, measured: Coefficients) -> Costs:
        """Return the costs measured by ``blockwright profile``: the density of this machine, not of its data sheet.

        A token counts as one of a large batch; a pair of positions counts half, as kernels skip pairs behind the mask.
        """
        return cls(measured.token + measured.beyond, measured.prefill / 2.0, measured.context, measured.row)

    def prompt(self, length: float, behind: float = 0.0) -> float:
        """Return the seconds of computing ``length`` prompt tokens after ``behind`` tokens whose KV is there."""
        return self.token * length + self.attend * length * (length + 2.0 * behind)

    def answer(self, length: float) -> float:
        """Return the seconds of computing ``length`` tokens of an answer."""
        return (self.token + self.sample) * length

    def comp(self, prompt: float, answer: float) -> float:
        """Return the seconds of compute of a request alone; lengths in tokens."""
        return self.prompt(prompt) + self.answer(answer)

    def mem(self, prompt: float, answer: float) -> float:
        """Return the seconds of reading KV of a request: the i-th token of the answer reads ``prompt`` + i positions."""
        return self.read * answer * (prompt + (answer + 1.0) / 2.0)

    def rho(self, prompt: float, answer: float) -> float:
        """Return the density of a request alone."""
        return density(self.comp(prompt, answer), self.mem(prompt, answer))

"""Sampling noise: a pure function of (seed, choice, position, token id).

Any implementation and any rerun of a sequence therefore draws the same. Exactly, with 64-bit unsigned arithmetic modulo
2**64, G = 0x9E3779B97F4A7C15 and

    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31

    key  = mix(mix(mix(seed + G) + choice + G) + position + G)
    h(t) = mix(key + (t + 1) * G)                   for token id t
    u    = ((h >> 12) + 0.5) * 2**-52               exact in float64, never 0 or 1
    g    = -log(-log(u))                            float64
"""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1


def noise_key(seed: int, choice: int, position: int) -> int:
    """Return the 64-bit state that the noise of one position starts from."""
    key = 0
    for part in (seed, choice, position):
        key = _mix((key + part + GOLDEN) & MASK)
    return key


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * FIRST) & MASK
    z = ((z ^ (z >> 27)) * SECOND) & MASK
    return z ^ (z >> 31)


def gumbel(key: int, token_K: np.ndarray) -> np.ndarray:
    """Return float64 [K]: the noise of token ids ``token_K`` (integers)."""
    z_K = (token_K.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + np.uint64(key)
    z_K = (z_K ^ (z_K >> np.uint64(30))) * np.uint64(FIRST)
    z_K = (z_K ^ (z_K >> np.uint64(27))) * np.uint64(SECOND)
    z_K ^= z_K >> np.uint64(31)
    u_K = ((z_K >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(u_K)))

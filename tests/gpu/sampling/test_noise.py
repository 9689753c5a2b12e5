"""The noise is the documented function, looks like Gumbel noise, and depends on all that it should depend on."""

from __future__ import annotations

import math

import numpy as np

from blockwright.gpu.sampling.noise import gumbel, noise_key

G = 0x9E3779B97F4A7C15


def documented(seed: int, choice: int, position: int, token: int) -> float:
    """The module's text, word by word, in exact integers."""

    def mix(z: int) -> int:
        z %= 2**64
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 % 2**64
        z ^= z >> 27
        z = z * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    key = mix(mix(mix(seed + G) + choice + G) + position + G)
    h = mix(key + (token + 1) * G)
    return -math.log(-math.log(((h >> 12) + 0.5) * 2**-52))


def test_is_what_is_documented() -> None:
    tokens = np.array([0, 1, 2, 31999, 151935, 2**31 - 1])
    for seed, choice, position in [(0, 0, 0), (1, 0, 7), (2**64 - 1, 3, 4095), (12345678901234567890, 1, 100)]:
        got = gumbel(noise_key(seed, choice, position), tokens)
        want = [documented(seed, choice, position, int(token)) for token in tokens]
        np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-14)


def test_known_values() -> None:
    """A change of the function changes every sampled text: it must not happen by accident."""
    assert noise_key(42, 0, 17) == 0xDEE3D6F2736F2D92
    np.testing.assert_allclose(
        gumbel(noise_key(42, 0, 17), np.arange(3)),
        [-0.6751294210062997, 0.13306733638378987, 1.8437014502196485],
        rtol=1e-12,
    )


def test_distribution() -> None:
    values = gumbel(noise_key(3, 0, 5), np.arange(200_000))
    assert abs(values.mean() - 0.5772) < 0.01
    assert abs(values.std() - math.pi / math.sqrt(6)) < 0.01
    assert np.isfinite(values).all()


def test_neighbours_are_unrelated() -> None:
    tokens = np.arange(50_000)
    base = gumbel(noise_key(9, 0, 20), tokens)
    for other in (noise_key(10, 0, 20), noise_key(9, 1, 20), noise_key(9, 0, 21), noise_key(9, 20, 0)):
        assert abs(np.corrcoef(base, gumbel(other, tokens))[0, 1]) < 0.02
    assert abs(np.corrcoef(base[:-1], base[1:])[0, 1]) < 0.02

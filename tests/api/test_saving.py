"""The sentence that tells what sharing saves."""

from blockwright.api.saving import saving


def test_the_sentence() -> None:
    assert saving(3, 4 << 20, 6 << 20) == "3 models in 4.0 MiB instead of 10.0 MiB (60% saved)"
    assert saving(1, 1536, 0) == "1 model in 1.5 KiB"
    assert saving(0, 0, 0) == "0 models in 0 B"

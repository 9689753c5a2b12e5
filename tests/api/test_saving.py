"""The sentence that tells what sharing saves."""

from blockwright.api.saving import in_memory, saving, shared_part


def test_the_sentence() -> None:
    assert saving(3, 4 << 20, 6 << 20) == "3 models in 4.0 MiB instead of 10.0 MiB (60% saved)"
    assert saving(1, 1536, 0) == "1 model in 1.5 KiB"
    assert saving(0, 0, 0) == "0 models in 0 B"


def test_a_part_that_is_not_the_whole_does_not_look_like_it() -> None:
    seen = ["0%", "0.01%", "0.40%", "1%", "50%", "99%", "99.87%", "99.99%", "100%"]
    assert [shared_part(x) for x in (0.0, 1e-9, 0.004, 0.01, 0.5, 0.99, 0.9987, 0.9999999, 1.0)] == seen


def test_what_workers_hold_is_named() -> None:
    assert in_memory([]) == "no worker holds parameters"
    assert in_memory([3 << 20]) == "in memory, as the kernels read them: 3.0 MiB on its worker"
    assert in_memory([3 << 20] * 2) == "in memory, as the kernels read them: 3.0 MiB on each of 2 workers"
    assert in_memory([3 << 20, 1 << 20]) == "in memory, as the kernels read them: 1.0 MiB to 3.0 MiB on each of 2 workers"

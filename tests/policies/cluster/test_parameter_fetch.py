"""What is asked of a source, and when nothing more comes: batches in order, a few at a time, whatever lacks."""

from __future__ import annotations

from random import Random

from blockwright.policies.cluster.parameter_fetch import AHEAD, BATCH_BYTES, ParameterFetch, batch_bytes
from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPiece

WANTED = [(b"x", [PackedTensor(b"1", 25), PackedTensor(b"2", 5)]), (b"y", []), (b"z", [PackedTensor(b"3", 40)])]


def test_batches_follow_each_other_and_components_settle_in_order() -> None:
    fetch = ParameterFetch(WANTED, 20)
    assert fetch.ask(1) == [TensorPiece(b"1", 25, 0, 20)]
    assert fetch.ask(2) == [TensorPiece(b"1", 25, 20, 25), TensorPiece(b"2", 5, 0, 5), TensorPiece(b"3", 40, 0, 10)]
    assert [(one.component, one.at) for one in fetch.arrived(2, [])] == [(b"x", 0), (b"z", 10)]
    assert fetch.settled() == [], "the first half of a tensor has not come"
    fetch.arrived(1, [])
    assert (fetch.settled(), fetch.settled()) == ([b"x", b"y"], [])
    assert fetch.ask(3) == [TensorPiece(b"3", 40, 10, 30)]
    assert fetch.ask(4) == [TensorPiece(b"3", 40, 30, 40)]
    assert fetch.ask(5) == []
    fetch.arrived(3, [])
    fetch.arrived(4, [])
    assert fetch.settled() == [b"z"]
    assert (fetch.nbytes, fetch.reason, fetch.busy) == (70, "", True)
    for number in range(1, 5):
        fetch.written(number)
    assert not fetch.busy


def test_memory_for_what_comes_is_bounded() -> None:
    fetch = ParameterFetch([(b"x", [PackedTensor(b"1", 100)])], 10)
    assert [bool(fetch.ask(number)) for number in range(AHEAD + 1)] == [True] * AHEAD + [False]
    fetch.arrived(0, [])
    assert not fetch.ask(9), "it came and is not written yet"
    fetch.written(0)
    assert fetch.ask(9)
    assert (batch_bytes(64 << 20), batch_bytes(1 << 40)) == (1 << 20, BATCH_BYTES)


def test_what_the_source_has_not_got_is_not_asked_for_again() -> None:
    fetch = ParameterFetch([(b"x", [PackedTensor(b"1", 50), PackedTensor(b"2", 10)])], 10)
    for number in range(2):
        fetch.ask(number)
    assert fetch.arrived(0, [b"1"]) == []
    fetch.written(0)
    assert fetch.ask(7) == [TensorPiece(b"2", 10, 0, 10)]
    fetch.arrived(1, [b"1"])
    assert not fetch.settled()
    (stretch,) = fetch.arrived(7, [])
    assert stretch.pieces == [TensorPiece(b"2", 10, 0, 10)]
    assert (fetch.settled(), fetch.missing, fetch.nbytes, fetch.reason) == ([b"x"], {b"1"}, 10, "")


def test_nothing_is_waited_for_after_the_end_and_nothing_written_that_was_dropped() -> None:
    fetch = ParameterFetch(WANTED, 20)
    fetch.ask(1)
    fetch.ask(2)
    fetch.drop(b"x")
    assert [one.component for one in fetch.arrived(2, [])] == [b"z"]
    fetch.give_up("it died")
    assert (fetch.settled(), fetch.reason, fetch.unanswered) == ([b"y", b"z"], "it died", False)
    assert fetch.arrived(1, []) == []
    assert fetch.ask(3) == []


def test_any_order_of_answers_settles_everything_once() -> None:
    for seed in range(50):
        random = Random(seed)
        wanted = [
            (bytes([c]), [PackedTensor(bytes([c, t]), random.randint(1, 60)) for t in range(random.randint(0, 4))])
            for c in range(6)
        ]
        fetch = ParameterFetch(wanted, random.randint(5, 80))
        asked = dict[int, int]()
        settled = list[bytes]()
        number = 0
        missing = {tensor.id for _, tensors in wanted for tensor in tensors if random.random() < 0.2}
        came: dict[bytes, int] = {}
        while fetch.busy:
            while pieces := fetch.ask(number):
                asked[number] = len(pieces)
                number += 1
            if not asked:
                break
            answered = random.choice(list(asked))
            del asked[answered]
            for stretch in fetch.arrived(answered, missing):
                for piece in stretch.pieces:
                    came[piece.id] = came.get(piece.id, 0) + piece.last - piece.first
            fetch.written(answered)
            settled += fetch.settled()
        settled += fetch.settled()
        assert settled == [component for component, _ in wanted]
        whole = {tensor.id: tensor.nbytes for _, tensors in wanted for tensor in tensors if tensor.id not in missing}
        assert came == whole
        assert fetch.nbytes == sum(whole.values())

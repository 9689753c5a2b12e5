"""The scanner: any cut of a text into pieces gives the same answer."""

from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.text.stops import StopScanner
from blockwright.tests.claims import claim

SHORT = st.text(alphabet="abc", min_size=1, max_size=4)


def scan(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    scanner = StopScanner(stops)
    seen = "".join([scanner.push(piece) for piece in pieces])
    return seen + (scanner.flush() if scanner.found is None else ""), scanner.found


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """The first end wins, then the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@claim("Stop strings are found over token borders and never shown half", of="http-api")
@given(st.lists(SHORT, min_size=1, max_size=4), st.lists(st.text(alphabet="abc", max_size=5), max_size=8))
def test_the_cut_does_not_matter(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    assert scan(stops, pieces) == scan(stops, [text]) == scan(stops, list(text)) == reference(stops, text)


@given(st.lists(SHORT, min_size=1, max_size=4), st.text(alphabet="abc", max_size=12))
def test_only_what_may_become_a_stop_is_held_back(stops: list[str], text: str) -> None:
    scanner = StopScanner(stops)
    seen = scanner.push(text)
    if scanner.found is None:
        tails = [text[len(text) - k :] for k in range(len(text) + 1)]
        longest = max(len(tail) for tail in tails if any(stop.startswith(tail) for stop in stops))
        assert len(text) - len(seen) == longest


def test_text_after_the_stop_is_dropped() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("one EN") == "one "
    assert scanner.push("D two") == ""
    assert scanner.push("three") == ""
    assert scanner.found == "END"


def test_a_stop_within_another_ends_first() -> None:
    assert scan(["abcd", "bc"], ["abcd"]) == ("a", "bc")


@given(
    st.lists(st.tuples(st.text("ab<", max_size=3), st.booleans()), max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_hidden_text_counts_and_is_left_out(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    """As if everything were shown, with the hidden characters taken out of what is before the stop string."""
    said = "".join(text for text, _ in pieces)
    hidden = [is_hidden for text, is_hidden in pieces for _ in text]
    plain, marked = StopScanner(stops), StopScanner(stops)
    kept = len(plain.push(said) + plain.flush())
    shown = "".join([*[marked.push(text, hidden=is_hidden) for text, is_hidden in pieces], marked.flush()])
    assert marked.found == plain.found
    assert shown == "".join(char for char, is_hidden in zip(said[:kept], hidden[:kept], strict=True) if not is_hidden)

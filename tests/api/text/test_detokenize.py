"""Pieces join to the full decode, and none of them shows half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from blockwright.api.text.encoder import Encoder
from blockwright.api.text.tokenizer import TextCodec
from blockwright.tests.claims import claim


def fallback_codec() -> TextCodec:
    """As Llama 2: words with U+2581 for a space, bytes as ``<0xXX>``, one leading space stripped."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁a", "a", "b", "▁bee", "é", "▁€"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(w, special=True) for w in words[:3]])
    return TextCodec(Encoder(tokenizer))


FALLBACK = fallback_codec()
FIRST_BYTE = 3
FIRST_WORD = 259
LAST = 265


def stream(codec: TextCodec, tokens: list[int], context: tuple[int, ...] = ()) -> list[str]:
    detokenizer = codec.detokenizer(context)
    return [*(detokenizer.push((token,)) for token in tokens), detokenizer.flush()]


@given(st.lists(st.integers(0, 268), max_size=40), st.integers(1, 5))
def test_byte_level_pieces_join_to_the_full_decode(codec: TextCodec, tokens: list[int], step: int) -> None:
    assert "".join(stream(codec, tokens)) == codec.decode(tokens)
    together = codec.detokenizer()
    pieces = [together.push(tokens[i : i + step]) for i in range(0, len(tokens), step)]
    assert "".join(pieces) + together.flush() == codec.decode(tokens)


@claim("Streams never show half a character", of="http-api")
@given(st.text(max_size=20))
def test_valid_text_never_shows_a_replacement(codec: TextCodec, text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = stream(codec, codec.encode(text, special=False))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


WORD = st.sampled_from([[i] for i in range(FIRST_WORD, LAST + 1)])
CHARACTER = st.characters(codec="utf-8", exclude_characters="\ufffd ").map(lambda c: [FIRST_BYTE + b for b in c.encode()])


@given(st.lists(WORD | CHARACTER | st.just([2]), max_size=20))
def test_byte_fallback_joins_to_the_full_decode(parts: list[list[int]]) -> None:
    tokens = [token for part in parts for token in part]
    pieces = stream(FALLBACK, tokens)
    assert "".join(pieces) == FALLBACK.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(WORD, max_size=6), st.lists(WORD | CHARACTER, max_size=8))
def test_a_completion_continues_its_prompt(before: list[list[int]], after: list[list[int]]) -> None:
    prompt = [token for part in before for token in part]
    tokens = [token for part in after for token in part]
    text = "".join(stream(FALLBACK, tokens, tuple(prompt)))
    assert FALLBACK.decode(prompt) + text == FALLBACK.decode(prompt + tokens)


@given(st.lists(st.integers(FIRST_BYTE, FIRST_BYTE + 255), max_size=12))
def test_spoilt_bytes_are_shown_once_each_at_most(tokens: list[int]) -> None:
    text = "".join(stream(FALLBACK, [*tokens, FIRST_WORD + 2]))
    assert text.endswith("a")
    assert text.count("\ufffd") <= len(tokens)


@pytest.mark.parametrize("make", [lambda codec: codec, lambda codec: FALLBACK])
def test_bytes_that_stay_incomplete_come_out_at_the_end(codec: TextCodec, make: object) -> None:
    used = make(codec)  # type: ignore[operator]
    emoji = codec.encode("🙂", special=False) if used is codec else [FIRST_BYTE + b for b in "🙂".encode()]
    assert stream(used, emoji) == ["", "", "", "🙂", ""]
    assert [bool(piece) for piece in stream(used, emoji[:3])] == [False, False, False, True]


def test_an_id_outside_the_vocabulary_shows_nothing(codec: TextCodec) -> None:
    assert stream(codec, [9999, *codec.encode("x", special=False)]) == ["", "x", ""]

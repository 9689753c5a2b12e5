"""The options of a program are the API's fields."""

from __future__ import annotations

import pytest

from blockwright.api.embeddings.fields import EMBEDDING_FIELDS
from blockwright.api.openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS
from blockwright.api.openai.field_types import Field, Only
from blockwright.api.program.client import Client
from blockwright.api.program.generate import generate
from blockwright.api.program.options import OWN, ConversationOptions, EmbedOptions, GenerateOptions
from blockwright.tests.claims import claim


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(GenerateOptions, COMPLETION_FIELDS), (ConversationOptions, CHAT_FIELDS), (EmbedOptions, EMBEDDING_FIELDS)],
)
def test_there_is_one_for_each_field(kind: type[GenerateOptions], fields: tuple[Field, ...]) -> None:
    served = {field.name for field in fields if not isinstance(field.kind, Only)}
    assert set(kind.__optional_keys__) == served - OWN
    assert not kind.__required_keys__


@claim("Options are typed, and a misspelt one raises where it stands", of="embedding")
def test_a_misspelt_one_raises_where_it_stands() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(TypeError, match=r"there is no option 'max_tokns'; did you mean max_tokens\?"):
        client.generate("a", max_tokns=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there is no option 'echo'"):
        client.chat("a", echo=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'temprature'; did you mean temperature\?"):
        generate("/no/checkpoint", ["a"], temprature=0)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"workers is a setting of the cluster; give it as settings={'workers': ...}"):
        generate("/no/checkpoint", ["a"], workers=2)  # type: ignore[call-overload]

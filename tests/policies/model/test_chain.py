"""Which application is made of which."""

from __future__ import annotations

from blockwright.policies.model.chain import Block, Chain, Component, Kind, bases
from blockwright.tests.claims import claim


def chain(name: str, ids: str) -> Chain:
    components = tuple(Component(i.encode() * 16, Kind.MLP, 10, 8, 8) for i in ids)
    return Chain(name, (Block(components[:2]), Block(components[2:])), 64)


@claim("Every variant is a model id with its parent and root", of="fine-tunes")
def test_the_base_is_the_earlier_application_with_most_parameters_in_common() -> None:
    chains = [
        chain("base", "abcd"),
        chain("other", "wxyz"),
        chain("copy", "abcd"),
        chain("tuned", "abcE"),
        chain("tuned-on", "abEF"),
        chain("merged", "wxyd"),
        chain("looped", "wxddd"),  # a layer that it runs through three times is there once
    ]
    want = {"copy": "base", "tuned": "base", "tuned-on": "tuned", "merged": "other", "looped": "merged"}
    assert bases(chains) == want
    assert bases(reversed(chains[:4])) == {"copy": "tuned", "base": "copy"}


def test_applications_that_share_nothing_have_none() -> None:
    assert bases([chain("a", "abcd"), chain("b", "wxyz")]) == {}


def test_an_adapter_is_nobodys_base() -> None:
    """Not even where its own base is gone."""
    base, other = chain("base", "abcd"), chain("other", "abcE")
    adapters = [
        Chain(name, (Block((*base.components[:3], base.components[3].adapted(name.encode() * 8, 1))),), 64)
        for name in ("lo", "ra")
    ]
    assert bases([base, *adapters, other]) == {"lo": "base", "ra": "base", "other": "base"}
    assert bases(adapters) == {}
    assert bases([*adapters, other]) == {}
    assert bases([adapters[0], other, adapters[1]]) == {"ra": "other"}

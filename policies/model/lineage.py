"""The identity of KV: lineages over components, and hashes over the tokens of a page.

A page of KV is identified by (token hash, lineage). Lineage runs over components, never blocks, so that cutting a model
elsewhere changes no identity. Token hashes are chained page by page and seeded with the tenant's cache salt.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from .chain import Component


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def lineages(components: Sequence[Component], numerics: str) -> list[bytes]:
    """Return 16 bytes for each depth: H(numerics) chained with the ids of all components up to and including that depth."""
    value = _hash(numerics.encode())
    result = []
    for component in components:
        value = _hash(value, component.id)
        result.append(value)
    return result


def hidden_lineage(lineage: bytes) -> bytes:
    """Return the lineage of the hidden states behind a component of this lineage."""
    return _hash(lineage, b"hidden")


def root_hash(salt: bytes) -> bytes:
    """Return the hash before the first page.

    It differs between cache salts, so that tenants do not see each other's pages.
    """
    key = salt if len(salt) <= 64 else hashlib.blake2b(salt).digest()  # keys have at most 64 bytes; the whole salt counts
    return hashlib.blake2b(b"page", key=key, digest_size=16).digest()


def next_hash(previous: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of the page that holds ``tokens`` and follows ``previous``."""
    return _hash(previous, array("i", tokens).tobytes())


def page_hashes(tokens: Sequence[int], page_size: int, salt: bytes = b"") -> list[bytes]:
    """Return the hashes of the full pages of ``tokens``: len(tokens) // page_size of them, 16 bytes each."""
    value = root_hash(salt)
    result = []
    for end in range(page_size, len(tokens) + 1, page_size):
        value = next_hash(value, tokens[end - page_size : end])
        result.append(value)
    return result

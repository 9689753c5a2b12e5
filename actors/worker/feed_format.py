"""Wire format of the event feed: batches of entries as bytes, which the runtime forwards without decoding."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from ...policies.sweep.feed import FeedEntry
from ...runtime.base.decoding import decode
from ...runtime.base.errors import DecodeError
from .event_log_file import plain


def write_batch(entries: Sequence[FeedEntry]) -> bytes:
    """Encode entries. Raises TypeError for an entry of an unknown type."""
    packed: bytes = msgpack.packb(entries, default=plain)
    return packed


def read_batch(batch: bytes) -> list[FeedEntry]:
    """Decode a batch. Raises DecodeError."""
    limits = dict.fromkeys(("max_str_len", "max_bin_len", "max_array_len", "max_map_len"), len(batch))
    try:
        entries: list[FeedEntry] = decode(list[FeedEntry], msgpack.unpackb(batch, strict_map_key=False, **limits))
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"a batch of an event feed cannot be read: {error}") from error
    return entries

"""File format of event logs: encoder and reader.

A file is ``MAGIC`` followed by records: length of the body (4 bytes), check of the length (2), CRC-32 of the body (4), body.
The first body is the ``Header`` as a MessagePack map, the others are entries of ``policies/sweep/event_log.py``, or of
``policies/control/event_log.py`` in the log of a controller, dataclasses encoded as ``[tag, field, ...]`` as in messages
(``runtime/base/codec.py``). A partial record at the end (the process was killed while writing) is tolerated; anything else
that does not parse is an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

import msgpack

from ...policies.sweep.event_log import Began, Entry, describe
from ...runtime.base.decoding import decode
from ...runtime.base.errors import DecodeError
from ...runtime.base.schema import Values, schema_tag, wire_values

T = TypeVar("T")
E = TypeVar("E")
MAGIC = b"blockwright events\n"
FORMAT = 1
WRITERS = {"sweep": "a worker", "control": "the controller"}  # by state machine
_FRAME = struct.Struct("<IHI")
_LENGTH = struct.Struct("<I")


class EventLogError(Exception):
    """A file that cannot be read: path, byte offset, reason."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path}, byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class OtherMachineError(EventLogError):
    """A file that is the log of another state machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The writer of the file, and its place in the log.

    ``worker``: the writer's name. ``part`` counts the files of one life of it from 1; ``written`` is in seconds since 1970.
    ``machine``: the state machine, as in ``WRITERS``.
    """

    format: int = FORMAT
    version: str  # blockwright's version
    worker: str
    incarnation: int
    part: int
    written: float
    machine: str = "sweep"


# writing -------------------------------------------------------------------------------------------------------------


@cache
def _form(kind: type) -> tuple[int, Values]:
    return schema_tag(kind), wire_values(kind)


def plain(value: Any) -> Any:
    """Convert types that MessagePack does not know.

    Used instead of ``codec.encode``, which inspects every list and takes twice as long.
    """
    if isinstance(value, frozenset | set):
        return sorted(value)
    kind: type = type(value)
    tag, values = _form(kind)
    return (tag, *values(value))


def encode_header(header: Header) -> bytes:
    """Return the start of a file: magic and header record."""
    return MAGIC + _record(msgpack.packb(asdict(header)))


def entry_encoder() -> Callable[[object], bytes]:
    """Return a function that encodes records. It is not thread-safe, and raises TypeError for unknown types."""
    pack = msgpack.Packer(default=plain).pack
    return lambda entry: _record(pack(entry))


def _record(body: bytes) -> bytes:
    return _FRAME.pack(len(body), _check(len(body)), zlib.crc32(body)) + body


def _check(length: int) -> int:
    return zlib.crc32(_LENGTH.pack(length)) & 0xFFFF


# reading -------------------------------------------------------------------------------------------------------------


def is_event_log(path: Path) -> bool:
    """Return whether a file begins like an event log.

    Nothing is read from a pipe, since its reader will want all of it. Raises OSError.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class LogFile(Generic[E]):
    """One file of an event log with entries of type ``E``, opened for reading.

    Iterating yields (byte offset, entry) after ``began``; afterwards ``torn`` is known. Opening and iterating raise
    EventLogError and OSError.
    """

    machine: ClassVar[str]
    entries: ClassVar[Any]  # ``E``

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path.read_bytes()
        self.size = len(self._data)
        self.torn = 0  # bytes of a partial record at the end
        # also true for an empty file: a worker that was killed at its start has written no more
        if MAGIC.startswith(self._data):
            raise EventLogError(path, self.size, "its header is missing: the file was cut off")
        if not self._data.startswith(MAGIC):
            raise EventLogError(path, 0, f"it begins with {self._data[:8]!r}: no event log")
        records = self._records()
        self.header = self._read_header(next(records, None))
        if (found := self.header.machine) != self.machine:
            reason = f"it is the event log of {WRITERS.get(found, found)}, not of {WRITERS[self.machine]}"
            raise OtherMachineError(path, len(MAGIC), reason)
        self._rest = self._entries(records)
        self.began_at, began = next(self._rest, (self.size, None))
        if not isinstance(began, Began):
            raise EventLogError(path, self.began_at, "the state with which the log begins is missing: the file was cut off")
        self.began: Began = began

    def __iter__(self) -> Iterator[tuple[int, E]]:
        return self._rest

    def begin(self, restore: Callable[[Began], T]) -> T:
        """Return the result of ``restore`` on the state that the log begins with.

        Raises EventLogError if ``restore`` fails: the checksum of the state is right, but its form may be another release's.
        """
        try:
            return restore(self.began)
        except EventLogError:
            raise
        except Exception as error:
            reason = f"the state with which it begins is none of this blockwright ({describe(error)})"
            raise EventLogError(self.path, self.began_at, f"{reason}; blockwright {self.header.version} wrote it") from error

    def _records(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (byte offset, body) of each record."""
        data, offset = memoryview(self._data), len(MAGIC)
        while offset < self.size:
            self.torn = self.size - offset
            if self.torn < _FRAME.size:
                return
            length, check, checksum = _FRAME.unpack_from(data, offset)
            if check != _check(length):
                raise EventLogError(self.path, offset, "the length of a record is damaged")
            body = data[offset + _FRAME.size : offset + _FRAME.size + length]
            if len(body) < length:
                return
            if zlib.crc32(body) != checksum:
                raise EventLogError(self.path, offset, "a record is damaged (its checksum does not fit)")
            self.torn = 0
            yield offset, body
            offset += _FRAME.size + length

    def _read_header(self, record: tuple[int, memoryview] | None) -> Header:
        if record is None:
            raise EventLogError(self.path, self.size, "its header is missing: the file was cut off")
        try:
            values = msgpack.unpackb(record[1])
            if (found := values.get("format")) != FORMAT:
                reason = f"it has format {found!r}, and this blockwright reads format {FORMAT}"
                raise EventLogError(self.path, record[0], reason)
            values = {"machine": "sweep"} | values  # older files do not name it
            hints = get_type_hints(Header)
            return Header(**{field.name: decode(hints[field.name], values[field.name]) for field in fields(Header)})
        except (ValueError, TypeError, KeyError, AttributeError, DecodeError) as error:
            raise EventLogError(self.path, record[0], f"its header cannot be read: {error}") from error

    def _entries(self, records: Iterator[tuple[int, memoryview]]) -> Iterator[tuple[int, E]]:
        for offset, body in records:
            limits = dict.fromkeys(("max_str_len", "max_bin_len", "max_array_len", "max_map_len"), len(body))
            try:
                yield offset, decode(self.entries, msgpack.unpackb(body, strict_map_key=False, **limits))
            except (ValueError, TypeError, DecodeError, msgpack.exceptions.UnpackException) as error:
                reason = f"an entry cannot be read: {describe(error)}; blockwright {self.header.version} wrote it"
                raise EventLogError(self.path, offset, reason) from error


class EventLog(LogFile[Entry]):
    """One file of a worker's event log, opened for reading."""

    machine = "sweep"
    entries = Entry

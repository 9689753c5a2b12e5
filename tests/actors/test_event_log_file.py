"""The file format of event logs: what is written is read again, and what is not whole is refused or reported."""

from __future__ import annotations

import struct
import typing
import zlib
from dataclasses import asdict
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.actors.worker.event_log_file import MAGIC, EventLog, EventLogError, Header, encode_header, entry_encoder
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.event_log import Applied, Began, Committed, Ended, Entry, Failed, Planned
from blockwright.policies.sweep.events import Cancelled, Event, PeerLost

st.register_type_strategy(int, st.integers(-(1 << 63), (1 << 64) - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
MOST = 3  # of anything that there may be any number of: how many are written is the codec's business
HEADER = Header(version="0.1.0", worker="w0", incarnation=3, part=2, written=1.5)
BEGAN = Began({"name": "w0", "columns": [[1, 2], [], [-1]], "pages": {"a": b"x" * 1000}, "none": None, "half": 0.5})
EXACT = Planned(1.0, SweepPlan(7, row=[1, 2], start=[0, 5], count=[3, 1]), made=True)


def few(kind: type) -> st.SearchStrategy[object]:
    """Values of a list, or of a tuple of any length."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple and parts[-1] is not ...:
        return st.tuples(*map(st.from_type, parts))
    found = st.lists(st.from_type(parts[0]), max_size=MOST)
    return found if typing.get_origin(kind) is list else found.map(tuple)


st.register_type_strategy(list, few)
st.register_type_strategy(tuple, few)


def write(path: Path, *entries: Entry, header: Header = HEADER) -> Path:
    path.write_bytes(encode_header(header) + b"".join(map(entry_encoder(), entries)))
    return path


def entries_of(path: Path) -> list[Entry]:
    return [entry for _, entry in EventLog(path)]


@pytest.mark.parametrize("kind", [*typing.get_args(Event), SweepPlan, SweepResult], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_whatever_happens_can_be_written_and_read(tmp_path_factory, kind, data):
    value = data.draw(st.from_type(kind))
    now = data.draw(st.floats(allow_nan=False))
    entry = {SweepPlan: lambda: Planned(now, value, True), SweepResult: lambda: Committed(value, now)}.get(
        kind, lambda: Applied(value, now)
    )()
    path = write(tmp_path_factory.getbasetemp() / "entry.events", BEGAN, entry)
    assert repr(entries_of(path)) == repr([entry])


def test_the_other_entries(tmp_path):
    entries = [Planned(1.0), Planned(1.0, None, made=True), EXACT, Failed("AssertionError: a row"), Ended(b"d" * 16)]
    log = EventLog(write(tmp_path / "log", BEGAN, *entries))
    assert (log.header, log.began) == (HEADER, BEGAN)
    assert [entry for _, entry in log] == entries
    assert log.torn == 0


def test_half_a_record_at_the_end_is_reported(tmp_path):
    whole = write(tmp_path / "whole", BEGAN, EXACT, Applied(PeerLost("w1"), 1.0)).read_bytes()
    last = len(entry_encoder()(Applied(PeerLost("w1"), 1.0)))
    for lost in range(1, last):
        (tmp_path / "torn").write_bytes(whole[:-lost])
        log = EventLog(tmp_path / "torn")
        assert ([entry for _, entry in log], log.torn) == ([EXACT], last - lost)


def test_what_is_cut_off_before_anything_can_be_replayed_is_refused(tmp_path):
    whole = write(tmp_path / "whole", BEGAN).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(EventLogError, match=r"cut off|no event log"):
            EventLog(tmp_path / "cut")


def test_every_damaged_byte_is_noticed(tmp_path):
    whole = write(tmp_path / "whole", BEGAN, EXACT, Applied(Cancelled("r"), 2.0)).read_bytes()
    path = tmp_path / "damaged"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(EventLogError) as refused:
            entries_of(path)
        assert str(refused.value).startswith(f"{path}, byte ")
        assert 0 <= refused.value.offset <= place


def test_a_file_from_before_headers_named_the_machine_is_a_workers(tmp_path):
    rest = write(tmp_path / "log", BEGAN, EXACT).read_bytes()[len(encode_header(HEADER)) :]
    body = msgpack.packb({name: value for name, value in asdict(HEADER).items() if name != "machine"})
    length = struct.pack("<I", len(body))
    frame = struct.pack("<HI", zlib.crc32(length) & 0xFFFF, zlib.crc32(body))
    (tmp_path / "log").write_bytes(MAGIC + length + frame + body + rest)
    log = EventLog(tmp_path / "log")
    assert log.header == HEADER
    assert [entry for _, entry in log] == [EXACT]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "file"
    other = encode_header(Header(format=9, version="9.0", worker="w", incarnation=1, part=1, written=0.0))
    for content, reason, at in [
        (b"", "its header is missing", 0),
        (MAGIC[:5], "its header is missing", 5),
        (b'{"what": "sent"}\n', 'begins with b\'{"what":', 0),
        (other, "format 9", len(MAGIC)),
    ]:
        path.write_bytes(content)
        with pytest.raises(EventLogError, match=reason) as refused:
            EventLog(path)
        assert refused.value.offset == at
    with pytest.raises(EventLogError, match="the state with which the log begins is missing"):
        EventLog(write(path, EXACT))
    with pytest.raises(FileNotFoundError):
        EventLog(tmp_path / "none")


def test_an_entry_of_another_version_is_refused(tmp_path):
    path = write(tmp_path / "log", BEGAN, EXACT)
    with path.open("ab") as file:
        file.write(entry_encoder()(HEADER))  # a dataclass, but no entry
    with pytest.raises(EventLogError, match=r"the tag is of no member of the union; blockwright 0\.1\.0 wrote it"):
        entries_of(path)


def test_only_declared_types_are_written():
    with pytest.raises(TypeError):
        entry_encoder()(Began({"state": struct.Struct("<I")}))

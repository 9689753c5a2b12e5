"""Every published form of a trace, in files of a few lines."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.simulator.traces import WINDOW, Clients, TraceError, TraceRequest, cut, read_trace
from blockwright.tests.claims import claim

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
RATES = "model,client,window_start_s,rate_rps,iat_cv,iat_dist,iat_shape,iat_scale\n"
RATES += "m-a,0,0,0.5,2,Weibull,0.4,0.5\nm-a,1,0,0.25,2,Gamma,0.05,78\nm-a,0,600,0.5,2,Gamma,0.5,1\nm-b,0,0,9,1,Gamma,1,1\n"
NAMES = ("p1", "p5", "p10", "p20", "p30", "p40", "p50", "p60", "p70", "p80", "p90", "p95", "p99", "mean")
QUANTILES = f"model,client,requests_24h,field,{','.join(NAMES)}\n"
for _client in (0, 1):
    for _field, _base in (("input_tokens", 100), ("output_tokens", 10)):
        QUANTILES += f"m-a,{_client},9,{_field},{','.join(str(_base * (place + 1)) for place in range(14))}\n"


@claim("Traces in CSV with times, in the columns of BurstGPT and in JSON lines with prefix hashes are read", of="simulator")
def test_rows_with_times(tmp_path: Path) -> None:
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0.000000,374,44\n4.314579,396,109\n"))
    assert read_trace(file) == [TraceRequest(0.0, 374, 44), TraceRequest(4.314579, 396, 109)]


def test_rows_without_times(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("input_tokens,output_tokens\n42,285\n19,0\n")
    assert read_trace(file) == [TraceRequest(None, 42, 285), TraceRequest(None, 19, 1)]


@claim("Traces in CSV with times, in the columns of BurstGPT and in JSON lines with prefix hashes are read", of="simulator")
def test_rows_of_burstgpt_without_those_that_failed(tmp_path: Path) -> None:
    file = tmp_path / "b.csv"
    file.write_text(BURST + "45,ChatGPT,472,18,490,API log\n46,GPT-4,10,0,10,API log\n52.5,GPT-4,87,230,317,API log\n")
    assert read_trace(file) == [TraceRequest(0.0, 472, 18), TraceRequest(7.5, 87, 230)]


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n5,1,2\n1,3,4\n")
    assert read_trace(file) == [TraceRequest(1.0, 3, 4), TraceRequest(5.0, 1, 2)]
    file.write_text(BURST + "50,ChatGPT,1,2,3,API log\n45,ChatGPT,3,4,7,API log\n")
    assert read_trace(file) == [TraceRequest(0.0, 3, 4), TraceRequest(5.0, 1, 2)]
    file.write_text(
        '{"timestamp":9,"input_length":6,"output_length":5}\n{"timestamp":8,"input_length":7,"output_length":5}\n'
    )
    assert [one.prompt for one in read_trace(file)] == [7, 6]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffarrival_s,input_tokens,output_tokens\n1,2,3\n4,5,6\n",  # as spreadsheets write it
        "arrival_s, input_tokens, output_tokens\r\n1, 2, 3\r\n\r\n4, 5, 6\r\n",
        "arrival_s,input_tokens,output_tokens,note\n1,2,3,a\u2028b\n4,5,6,\x0c\n",
        '\ufeff{"timestamp":1000,"input_length":2,"output_length":3,"note":"a\u2028b"}\n'
        '{"timestamp":4000,"input_length":5,"output_length":6}\n',
    ],
)
def test_files_as_other_programs_write_them(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text, encoding="utf-8", newline="")
    assert read_trace(file) == [TraceRequest(1.0, 2, 3), TraceRequest(4.0, 5, 6)]


def test_ids_of_blocks_may_be_of_any_size(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    line = '{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[%s]}\n'
    file.write_text(line % f"{1 << 70}, {1 << 30}" + line % f"{1 << 70}, 7")
    assert [one.blocks for one in read_trace(file)] == [(0, 1), (0, 2)]


@claim("Traces in CSV with times, in the columns of BurstGPT and in JSON lines with prefix hashes are read", of="simulator")
def test_json_lines_with_blocks(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}\n{"timestamp":1500,')
    with pytest.raises(TraceError, match=r"t.jsonl, line 2: this is no JSON"):
        read_trace(file)
    file.write_text(
        '{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}\n'
        '{"timestamp":1500,"input_length":7,"output_length":5}\n'
    )
    assert read_trace(file) == [TraceRequest(0.0, 600, 5, (0, 1)), TraceRequest(1.5, 7, 5)]


def test_rates_of_clients_give_their_requests_within_their_windows(tmp_path: Path) -> None:
    rates, lengths = tmp_path / "r.csv", tmp_path / "q.csv"
    rates.write_text(RATES)
    lengths.write_text(QUANTILES)
    shapes = read_trace(rates, Clients(lengths, count=451))
    first = [one for one in shapes if one.at is not None and one.at < WINDOW]
    assert (len(shapes), len(first)) == (750, 450), "0.75 requests a second in the first window, 0.5 in the second"
    assert shapes == sorted(shapes, key=lambda one: one.at or 0.0)
    assert {100 <= one.prompt <= 1300 and 10 <= one.output <= 130 for one in shapes} == {True}
    prompts = sorted(one.prompt for one in shapes)
    assert 600 < prompts[len(prompts) // 2] < 800, "the median of the published quantiles is 700"
    assert read_trace(rates, Clients(lengths, count=451)) == shapes
    assert len(read_trace(rates, Clients(lengths, count=1))) == 450, "no more windows than are wanted"
    later = read_trace(rates, Clients(lengths, start=700.0, count=1))
    assert min(one.at or 0.0 for one in later) >= WINDOW


@claim("A wrong trace or description is refused with file, line and field", of="simulator")
@pytest.mark.parametrize(
    ("text", "clients", "says"),
    [
        ("a,b\n1,2\n", Clients(), "line 1: the columns are a, b; give input_tokens"),
        ("", Clients(), "t.csv is empty; give a line with the names of columns"),
        ("input_tokens,output_tokens\n", Clients(), "t.csv has no requests"),
        ("input_tokens,output_tokens\n1,200,6\n", Clients(), "t.csv, line 2: there are 3 fields, and line 1 names 2"),
        ("a,b\n1,2,3\n", Clients(), "line 1: the columns are a, b; give input_tokens"),
        ("input_tokens,output_tokens\n1_0,6\n", Clients(), "t.csv, line 2: input_tokens is '1_0'; give a number"),
        (f"input_tokens,output_tokens\n{'1' * 200_000},6\n", Clients(), "t.csv, line 2: this is no CSV"),
        (BURST + "45,ChatGPT,472,0,490,API log\n", Clients(), "t.csv has no request with a response"),
        ('[{"timestamp":0,"input_length":6,"output_length":5}]', Clients(), "t.csv, line 1: this is no JSON object"),
        ('{"timestamp":0,"input_length":true,"output_length":5}', Clients(), "line 1: input_length is True; give a number"),
        ("[" * 100_000, Clients(), "t.csv, line 1: this is no JSON"),
        ("input_tokens,output_tokens\n1,2\nx,2\n", Clients(), r"t.csv, line 3: input_tokens is 'x'; give a number"),
        ("input_tokens,output_tokens\n1\n", Clients(), r"t.csv, line 2: output_tokens is missing"),
        ("input_tokens,output_tokens\n1,-4\n", Clients(), r"line 2: output_tokens is '-4'; give a number from 0 on"),
        ('{"timestamp":0,"input_length":6,"output_length":5,"hash_ids":["a"]}', Clients(), "line 1: hash_ids is"),
        (RATES, Clients(), "t.csv has rates of clients and no lengths; name the file of their quantiles"),
        (RATES.replace("0.05,78", "0,78"), Clients(Path("q.csv")), "t.csv, line 3: iat_shape is '0'; give more than 0"),
        (
            RATES.replace("Weibull,0.4", "Weibull,1e-300"),
            Clients(Path("q.csv")),
            "iat_shape is '1e-300'; give more than 0, at",
        ),
        (
            RATES.replace("0,0.5,2", "0,1e14,2"),
            Clients(Path("q.csv")),
            "t.csv, line 2: rate_rps is '1e14'; give at most 10,0",
        ),
        (RATES.replace("m-a,0,0,", ",0,0,"), Clients(Path("q.csv")), "t.csv, line 2: model is ''; give a name"),
        (RATES, Clients(Path("q.csv"), "m-b"), "q.csv has no quantiles of the lengths of m-b's clients"),
        (RATES, Clients(Path("/none")), "/none cannot be read"),
        (RATES, Clients(Path(__file__), "m-c"), "there is no model 'm-c' in the trace; there are: m-a, m-b"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, text: str, clients: Clients, says: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    if clients.lengths == Path("q.csv"):
        (tmp_path / "q.csv").write_text(QUANTILES)
        clients = replace(clients, lengths=tmp_path / "q.csv")
    with pytest.raises(TraceError, match=says):
        read_trace(file, clients)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none")


def test_what_a_refusal_quotes_is_short(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for text in ("input_tokens,output_tokens\n1," + "9" * 50_000, ",".join(f"column {n}" for n in range(9000))):
        file.write_text(text)
        with pytest.raises(TraceError) as refused:
            read_trace(file)
        assert len(str(refused.value)) < 300


def test_a_part_of_a_trace_at_another_speed() -> None:
    shapes = [TraceRequest(float(at), at + 1, 1) for at in range(10)]
    assert cut(shapes, 4.0, 3, 2.0) == [TraceRequest(0.0, 5, 1), TraceRequest(0.5, 6, 1), TraceRequest(1.0, 7, 1)]
    assert cut([TraceRequest(None, 1, 1)], 99.0, 3, 2.0) == [TraceRequest(None, 1, 1)]
    assert cut(shapes, 99.0, 3, 1.0) == []

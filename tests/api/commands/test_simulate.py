"""``blockwright simulate CONFIG``: what it prints, stores and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from blockwright.actors.worker.event_log_file import Header, encode_header, entry_encoder
from blockwright.api.commands.cli import main
from blockwright.api.commands.simulate_report import WIDTH, cumulative, parse_target, plot, verdict
from blockwright.policies.sweep.event_log import Began
from blockwright.tests.claims import claim
from blockwright.tests.policies.event_tape import Driver, Tape, make_state

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "simulate" / "twelve.toml"


def simulate(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["simulate", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, figures = tmp_path / "log.jsonl", tmp_path / "f.json"
    code, out, err = simulate(capsys, EXAMPLE, "--set", "workload.count=40", "--log", log, "--json", figures)
    assert (code, "40 requests answered, 0 not" in out, "times real time" in err) == (0, True, True)
    assert [line.split()[0] for line in out.splitlines()[1:7]] == ["TTFT", "latency", "until", "per", "KV", "preemptions"]
    found = json.loads(figures.read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    assert sum(one["requests"] for one in found["instances"]) == found["requests"] == 40
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"dispatched", "started", "first", "finished"} == {entry["what"] for entry in entries}
    assert len([entry for entry in entries if entry["what"] == "dispatched" and len(entry["compared"]) == 12]) == 40
    again = json.loads(simulate(capsys, EXAMPLE, "--set", "workload.count=40", "--json", "-")[1])
    assert again["digest"] == found["digest"]


DROPPING = """
workload = {rate = 12.0, count = 60, input_tokens = 40, output_tokens = 40}
links = {bandwidth = 1e6}
dispatch = {policy = "prefix-aware"}
overload = {mode = "drop", layers = 4, throttled = 0.8}
[[models]]
name = "m"
kv_bytes = 64
parameters = 6400
[[instances]]
name = "i"
count = 2
profile = "p.json"
memory = 17000
memory_chunk = 64
page_size = 4
"""


def test_parameters_that_are_dropped_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    (tmp_path / "c.toml").write_text(DROPPING)
    code, out, _ = simulate(capsys, tmp_path / "c.toml", "--json", tmp_path / "f.json")
    found = json.loads((tmp_path / "f.json").read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    assert (code, found["failed"], "\noverload: " in out) == (0, 0, True)
    assert [change["what"] for change in found["overload"]["changes"]][:3] == ["drop", "dropped", "exchanged"]
    assert found["overload"]["moved_bytes"] > 0
    assert {"i-0", "i-1", "i-0+i-1"} == {one["name"] for one in found["instances"]}
    assert all(one["sweeps"] for one in found["instances"])


def test_what_the_controller_does_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    (tmp_path / "c.toml").write_text(DROPPING)
    words = ["--set", "overload.mode=off", "--set", 'deaths=[{"instance": "i-1", "at": 2.0}]', "--set", "loading.disk=6400"]
    log = tmp_path / "log.jsonl"
    code, out, _ = simulate(capsys, tmp_path / "c.toml", *words, "--log", log, "--json", tmp_path / "f.json")
    found = json.loads((tmp_path / "f.json").read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    again = found["control"].pop("restarts")
    assert found["control"] == {"loads": 1, "loaded_bytes": 6400, "refused": 0, "unloads": 0, "deaths": 1}
    assert (code, found["failed"], again > 0) == (0, 0, True)
    assert f"deaths: 1; requests that went on elsewhere: {again}\n" in out
    died = [entry for entry in map(json.loads, log.read_text().splitlines()) if entry["what"] == "died"]
    assert died == [{"at": 2.0, "what": "died", "instance": "i-1", "why": "killed"}]


def test_drafts_and_classes_are_reported_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text())
    found = {}
    for name, changes in (
        ("off", ()),
        ("on", ("models.0.drafts.tokens=2", "models.0.drafts.accepted=1", "workload.urgent=0.5")),
    ):
        words = [word for change in ("workload.count=10", *changes) for word in ("--set", change)]
        code, out, _ = simulate(capsys, EXAMPLE, *words, "--json", tmp_path / "f.json")
        found[name] = json.loads((tmp_path / "f.json").read_text())
        jsonschema.validate(found[name], schema)
        assert (code, found[name]["failed"], "\ndrafts: " in out) == (0, 0, name == "on")
        assert ("\nclass urgent: " in out, "\nclass normal: " in out) == (name == "on", name == "on")
    drafts = found["on"]["drafts"]
    assert found["on"].keys() - found["off"].keys() == {"drafts", "classes"}
    assert sum(one["requests"] for one in found["on"]["classes"].values()) == 10
    assert drafts["accepted"] == drafts["drafted"] > 0
    assert 2.9 < drafts["tokens_per_round"] < 3
    assert found["on"]["figures"]["latency"]["mean"] < found["off"]["figures"]["latency"]["mean"]


def test_the_course_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = tmp_path / "course.svg"
    code, out, _ = simulate(capsys, EXAMPLE, "--set", "workload.count=40", "--svg", drawn, "--json", "-")
    root = ElementTree.fromstring(drawn.read_text())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert (code, texts[:2]) == (0, ["A simulated run while requests arrive", "40 requests answered, 0 not"])
    assert {"running", "waiting", "KV memory used", "time to first token, mean by arrival"} < {*texts}
    course, figures = json.loads(out)["course"], json.loads(out)["figures"]
    assert 0 < max(one["ttft"] for one in course if one["ttft"] is not None) <= figures["ttft"]["max"]
    assert course[0]["ttft"] is None or course[0]["at"] == 0


def test_a_picture_is_of_one_run_and_has_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, EXAMPLE, "--set", "workload.count=1,2", "--svg", tmp_path / "a.svg")
    assert (code, out, "--svg draws one simulation; give one value to each --set" in err) == (2, "", True)
    code, out, err = simulate(capsys, EXAMPLE, "--svg", tmp_path / "no" / "a.svg")
    assert (code, out, "lies in no folder" in err) == (2, "", True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("workload.trace=none.csv", "none.csv cannot be read"),
        ("workload.lengths=twelve.toml", "twelve.toml, line 1: the columns are"),
        ("instances.0.profile=none.json", "none.json, which cannot be read"),
        ("dispatch.policy=best", "dispatch.policy is 'best'; give one of"),
        ("models.0.context=", "models[0].context is ''; give a whole number"),
        ("instances.0.profile=", "instances[0].profile is empty; name a file that blockwright profile stored"),
        ("workload.arrivals=log", "workload.arrivals is 'log'; give event logs with --from"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], change: str, says: str) -> None:
    code, out, err = simulate(capsys, EXAMPLE, "--set", change)
    assert (code, out) == (2, "")
    assert says in err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, EXAMPLE, "--set", "workload.count=1", "--log", tmp_path)
    assert (code, "cannot be written (Is a directory); check --log" in err) == (2, True)
    code, out, err = simulate(capsys, EXAMPLE, "--json", tmp_path)
    assert (code, out, f"--json {tmp_path} is a folder; name a file in it" in err) == (2, "", True)


def test_memory_that_holds_no_kv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    (tmp_path / "c.toml").write_text(DROPPING.replace('mode = "drop"', 'mode = "off"'))
    for change in ("memory=6400", "memory=6463", "memory_chunk=100000", "page_size=1000"):
        code, out, err = simulate(capsys, tmp_path / "c.toml", "--set", f"instances.0.{change}")
        assert (code, out) == (2, "")
        assert "c.toml, line 14: instances[0].memory is " in err
        assert "it holds no page of KV (" in err
        assert "beside 6,400 bytes of parameters; give more" in err
    assert simulate(capsys, tmp_path / "c.toml", "--set", "instances.0.stages=2", "--set", "instances.0.memory=3300")[0] == 2


@pytest.fixture
def event_log(tmp_path: Path) -> Path:
    """Of a worker that served nine requests for "base"."""
    machine = Tape(make_state())
    driver = Driver(machine, machine.state)
    driver.submit(9)
    while driver.turn():
        continue
    header = encode_header(Header(version="1", worker="w0", incarnation=1, part=1, written=0.0))
    path = tmp_path / "logs" / "w0.events"
    path.parent.mkdir()
    path.write_bytes(header + b"".join(map(entry_encoder(), [machine.began, *machine.entries])))
    return path


def test_the_parts_of_a_log_in_any_order(event_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Header(version="1", worker="w0", incarnation=1, part=1, written=0.0)
    later = event_log.with_name("later.events")
    later.write_bytes(
        event_log.read_bytes().replace(encode_header(first), encode_header(replace(first, part=2, written=9.0)))
    )
    found = [simulate(capsys, "--from", a, "--from", b, "--json", "-") for a, b in ((event_log, later), (later, event_log))]
    assert [code for code, *_ in found] == [0, 0]
    one, other = ({**json.loads(out), "from": None} for _, out, _ in found)
    assert one == other


def test_a_log_is_named_once(event_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, "--from", event_log, "--from", event_log)
    assert code == 2
    assert "are the same part of a log; name it once with --from" in err


def test_event_logs(
    event_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = simulate(capsys, "--from", event_log)
    assert (code, "8 requests answered, 0 not" in out, "what a sweep of w0 takes: a fit to" in out) == (0, True, True)
    assert "latency, as it was (s)" in out
    again = [simulate(capsys, "--from", event_log, "--json", "-", "--set", "instances.0.max_rows=1")[1] for _ in range(2)]
    assert json.loads(again[0]) == json.loads(again[1])
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    monkeypatch.chdir(tmp_path)  # where the command is typed, not where the log lies
    assert "what a sweep of w0 takes: the profile p.json" in simulate(
        capsys, "--from", event_log, "--set", "instances.0.profile=p.json"
    )[1]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("workload.rate=9", "--set workload.rate changes nothing with --from; of the workload set workload.start,"),
        ('workload={"arrivals": "log", "rate": 9}', "--set workload changes nothing with --from; of the workload set"),
        ("workload.arrivals=poisson", "--set workload.arrivals changes nothing with --from"),
        ("instances.0.max_row=9", "blockwright: --set: instances[0].max_row does not exist; did you mean max_rows?"),
        ("models.0.name=other", "--set: models lack 'base', which the logs have requests for; describe it, too"),
        ("instances.0.memory=1", "--set: instances[0].memory is 1; it holds no page of KV"),
    ],
)
def test_changes_that_do_not_fit_logs(event_log: Path, capsys: pytest.CaptureFixture[str], change: str, says: str) -> None:
    code, out, err = simulate(capsys, "--from", event_log, "--set", change)
    assert (code, out) == (2, "")
    assert says in err


def test_a_log_of_another_release(event_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = encode_header(Header(version="0.1.0", worker="w0", incarnation=1, part=1, written=0.0))
    event_log.write_bytes(header + entry_encoder()(Began({"config": 3})))
    code, out, err = simulate(capsys, "--from", event_log)
    assert (code, out) == (2, "")
    assert f"{event_log}, byte {len(header)}: the state with which it begins is none of this blockwright (" in err
    assert "; blockwright 0.1.0 wrote it" in err


def test_the_log_of_a_controller_has_no_requests(event_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = encode_header(Header(version="1", machine="control", worker="controller", incarnation=1, part=1, written=0.0))
    event_log.write_bytes(header)
    code, out, err = simulate(capsys, "--from", event_log)
    assert (code, out) == (2, "")
    assert err.endswith("it is the event log of the controller, not of a worker\n")


def test_plots() -> None:
    assert plot([0.0, 4.0]) == " " * (WIDTH // 2) + "█" * (WIDTH // 2)
    assert plot([1.0] * 7, 2.0) == "▄" * WIDTH
    assert plot([0, 0]) == " " * WIDTH
    rising = cumulative([float(n) for n in range(101)])
    assert rising == sorted(rising)
    assert (len(rising), rising[-1]) == (WIDTH, pytest.approx(100 / 101))


@claim("`simulate` prints a row for each combination of settings and names the best that meets a target", of="simulator")
def test_lists_are_a_row_for_each_combination_and_targets_name_the_smallest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--set", "workload.count=40", "--set", "workload.rate=40")
    lists = ("--set", "instances.0.count=1,12", "--set", "instances.0.max_rows=[8,48]")
    code, out, _ = simulate(capsys, EXAMPLE, *small, *lists, "--target", "ttft p99 < 3", "--target", "failed <= 0")
    table = [line.split() for line in out.splitlines() if line.startswith(("1 ", "12 "))]
    assert [row[:2] for row in table] == [["1", "8"], ["1", "48"], ["12", "8"], ["12", "48"]]
    assert (code, table[0][-1], table[3][-1]) == (0, "no", "yes")
    best = next(row[:2] for row in table if row[-1] == "yes")
    assert out.splitlines()[-1] == (
        f"smallest that meets ttft p99 < 3 and failed <= 0: instances.0.count={best[0]} instances.0.max_rows={best[1]}"
    )
    code, out, _ = simulate(capsys, EXAMPLE, *small, *lists, "--target", "ttft p99 < 1ms")
    assert (code, out.splitlines()[-1]) == (1, "nothing meets ttft p99 < 1ms")
    one = ("--set", "instances.0.count=12")
    assert simulate(capsys, EXAMPLE, *small, *one, "--target", "output_tokens_per_s > 1")[0] == 0
    assert simulate(capsys, EXAMPLE, *small, *one, "--target", "latency mean < 1ms")[0] == 1
    found = json.loads(simulate(capsys, EXAMPLE, *small, "--set", "instances.0.count=1,12", "--json", "-")[1])
    assert [one["set"][-1] for one in found] == ["instances.0.count=1", "instances.0.count=12"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "fast"], "--target 'fast' is not a target; write it like 'ttft p99 < 1'"),
        (["--target", "tfft p99 < 1"], "there is no metric 'tfft'; did you mean ttft? (there are: ttft, latency,"),
        (["--target", "ttft < 1"], "ttft has mean, p50, p90, p99, max; name one, like 'ttft p99 < 1'"),
        (["--target", "ttft p98 < 1"], "ttft has mean, p50, p90, p99, max"),
        (["--target", "failed p99 < 1"], "failed is one number; leave 'p99' out"),
        (["--set", f"seed={','.join(map(str, range(40)))}", "--set", f"workload.cv={[*range(1, 40)]}"], "at most 1,000"),
        (["--set", "seed=1,2", "--log", "x"], "--log writes the decisions of one simulation"),
    ],
)
def test_mistakes_of_targets_and_lists(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, EXAMPLE, *words)
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    ("values", "met", "best"),
    [
        (["workload.rate=2", "workload.rate=16", "workload.rate=4"], "yny", "largest that meets X: workload.rate=4"),
        (["workload.speed=2", "workload.speed=0.5"], "yy", "largest that meets X: workload.speed=2"),
        (["links.latency=1e-3", "links.latency=0.01"], "yy", "largest that meets X: links.latency=0.01"),
        (["models.0.own=1MiB", "models.0.own=1GiB"], "yy", "largest that meets X: models.0.own=1GiB"),
        (["instances.0.count=4", "instances.0.count=16"], "yy", "smallest that meets X: instances.0.count=4"),
        (["links.bandwidth=9GB", "links.bandwidth=1e9"], "yy", "smallest that meets X: links.bandwidth=1e9"),
        (["models.0.drafts.tokens=4", "models.0.drafts.tokens=2"], "yy", "smallest that meets X: models.0.drafts.tokens=2"),
        (["workload.law=constant", "workload.law=exponential"], "ny", "largest that meets X: workload.law=exponential"),
        (["workload.rate=nothing", "workload.rate=1"], "nn", "nothing meets X"),
    ],
)
def test_the_best_is_the_largest_load_or_the_smallest_resource(values: list[str], met: str, best: str) -> None:
    found = [{"failed": int(one == "n")} for one in met]
    outcome = verdict([[one] for one in values], found, [parse_target("failed < 1")])
    assert outcome == best.replace("X", "failed < 1")


def test_of_loads_and_resources_the_largest_load_comes_first() -> None:
    combined = [[f"instances.0.count={count}", f"workload.rate={rate}"] for count in (1, 2, 4) for rate in (5, 10, 20)]
    found = [{"failed": int(rate > 10 * count)} for count in (1, 2, 4) for rate in (5, 10, 20)]
    assert verdict(combined, found, [parse_target("failed < 1")]) == (
        "best that meets failed < 1: instances.0.count=2 workload.rate=20; the largest load, then the smallest of the rest"
    )


def test_sizes_with_units_are_compared_as_sizes() -> None:
    """The smallest that meets a target is none of the alphabet."""
    combined = [["instances.0.memory=2GiB"], ["instances.0.memory=512MiB"], ["instances.0.memory=1GiB"]]
    found = [{"failed": failed} for failed in (0, 1, 0)]
    outcome = verdict(combined, found, [parse_target("failed <= 0")])
    assert outcome == "smallest that meets failed <= 0: instances.0.memory=1GiB"

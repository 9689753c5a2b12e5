"""A cluster inside a program: answers, the ways to ask for them, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

import blockwright
from blockwright.actors.settings.errors import SettingsError
from blockwright.gpu.errors import CheckpointError
from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import blocks
from blockwright.tests.system.server import Program
from blockwright.tests.waiting import PATIENCE, until, until_now
from blockwright.zoo.add import add

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "demo-checkpoint"
GREEDY = {"max_tokens": 24, "temperature": 0}
SMALL = {"memory": "64MiB", "threads": 1, "silence": PATIENCE}

PLUGIN = ("-p", "blockwright.api.program.pytest_plugin")


@pytest.fixture
async def cluster() -> AsyncIterator[blockwright.Cluster]:
    async with blockwright.Cluster(MODEL, port=0, api_keys={"k": "t"}, admin_keys={"a": "t"}, **SMALL) as c:
        yield c


@claim("A program runs a cluster with `async with blockwright.Cluster(...)`", of="embedding", headline=True)
async def test_every_way_to_ask(cluster: blockwright.Cluster) -> None:
    """One cluster for all of it: starting one takes more than a second."""
    assert await cluster.models() == ["demo-checkpoint"]
    answer = await cluster.generate("reverse: abcd =", **GREEDY)
    assert (answer.text, answer.finish_reason, answer.completion_tokens) == ("dcba", "stop", 5)
    call = cluster.generate("reverse: abcd =", **GREEDY)
    pieces = [piece async for piece in call]
    assert "".join(piece.text for piece in pieces) == "dcba"
    assert pieces[-1].finish_reason == "stop"
    assert call.answer is not None
    assert (call.answer.choices, call.answer.id) == (answer.choices, call.id)
    assert (await cluster.get(f"/v1/requests/{call.id}"))["state"] == "finished"
    assert len((await cluster.get("/admin/cluster"))["workers"]) == 1
    with pytest.raises(SettingsError, match="cannot listen"):
        await blockwright.Cluster(MODEL, port=int(cluster.url.rpartition(":")[2]), **SMALL).start()
    assert (await cluster.chat("sort: 312 =", **GREEDY)).text == "123"
    talk = [{"role": "user", "content": "sort: 312 ="}]
    assert "".join([piece.text async for piece in cluster.chat(talk, **GREEDY)]) == "123"
    two = await cluster.generate(list(answer.token_ids), n=2, max_tokens=3, seed=1, ignore_eos=True)
    assert [len(choice.token_ids) for choice in two.choices] == [3, 3]
    with pytest.raises(blockwright.RequestError, match="temperature is 9") as refused:
        await cluster.generate("x", temperature=9)
    assert (refused.value.status, refused.value.param) == (400, "temperature")
    async with blockwright.Client(cluster.url, "k") as other:
        assert (await other.generate("reverse: abcd =", **GREEDY)).text == "dcba"
    async with aiohttp.ClientSession() as http, http.get(f"{cluster.url}/v1/models") as unknown:
        assert unknown.status == 401


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.nightly
async def test_where_a_block_is_inconvenient() -> None:
    """As cells of a notebook, which are run twice and out of order."""
    before = children()
    cluster = blockwright.Cluster(MODEL, **SMALL)
    with pytest.raises(
        RuntimeError, match=r"the cluster is not running; use it inside 'async with', or await its start\(\)"
    ):
        await cluster.generate("x")
    await asyncio.gather(cluster.start(), cluster.start())
    alone = children()
    await cluster.start()
    assert children() == alone
    assert len((await cluster.get("/admin/cluster"))["workers"]) == 1
    await cluster.close()
    await cluster.close()
    await until(lambda: children() <= before, "the workers' end")
    with pytest.raises(RuntimeError, match="not running"):
        await cluster.generate("x")


@pytest.mark.nightly
async def test_leaving_a_stream_frees_its_sequence_and_leaving_the_cluster_everything(pace: Path) -> None:
    before = children()
    async with blockwright.Cluster(MODEL, pace=str(pace), **SMALL) as cluster:
        assert cluster.url == ""
        call = cluster.generate("reverse: abcd =", max_tokens=400, ignore_eos=True)
        async for _ in call:
            break

        async def cancelled() -> bool:
            return bool((await cluster.get(f"/v1/requests/{call.id}"))["state"] == "cancelled")

        await until(cancelled)
    assert children() <= before
    with pytest.raises(RuntimeError, match="is not running"):
        await cluster.generate("x")


@claim("A cluster that cannot start or is left by Ctrl-C leaves nothing behind", of="embedding")
async def test_what_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean memory"):
        blockwright.Cluster(MODEL, memori=3)
    with pytest.raises(SettingsError, match="gateways is 2"):
        blockwright.Cluster(MODEL, gateways=2)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        async with blockwright.Cluster(tmp_path):
            pass
    add(tmp_path / "zoo", str(MODEL), "m")
    with pytest.raises(SettingsError, match=r"^'other' is no folder here, and the origin .* does not give"):
        async with blockwright.Cluster("other", origin=str(tmp_path / "zoo")):
            pass
    before = children()
    starting = asyncio.create_task(blockwright.Cluster(MODEL, **SMALL).start())
    await until(lambda: children() > before)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: children() <= before)


@claim("`blockwright.generate` works without `await`, also in a notebook", of="embedding")
@pytest.mark.nightly
async def test_generate_where_a_loop_is_running_as_in_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [f"reverse: {word} =" for word in ("abc", "xyz", "hello")]
    answers = blockwright.generate(MODEL, prompts, settings=SMALL, progress=True, **GREEDY)
    assert [answer.text for answer in answers] == ["cba", "zyx", "olleh"]
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "tok/s" in shown


@claim("`blockwright.generate` works without `await`, also in a notebook", of="embedding")
def test_without_await_and_without_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with blockwright.Cluster(MODEL, port=0, **SMALL) as cluster:
        assert cluster.models() == ["demo-checkpoint"]
        stream = cluster.stream_chat("sort: 312 =", **GREEDY)
        assert "".join(piece.text for piece in stream) == "123"
        assert stream.answer is not None
        assert cluster.chat("sort: 312 =", **GREEDY).choices == stream.answer.choices
        for _ in cluster.stream("reverse: abcd =", max_tokens=400, ignore_eos=True):
            break
        with pytest.raises(blockwright.RequestError, match="temperature is 9"):
            cluster.generate("x", temperature=9)
        assert cluster.get("/health/live") == {"status": "live"}
        assert cluster.url.startswith("http://127.0.0.1:")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(RuntimeError, match="is not open"):
        cluster.models()


@claim("A program runs a cluster with `async with blockwright.Cluster(...)`", of="embedding", headline=True)
def test_the_example_of_the_readme() -> None:
    command = [sys.executable, str(ROOT / "examples" / "embedded.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("skcolb\n0123\n", "", 0)
    code = (ROOT / "examples" / "embedded.py").read_text().partition("async def main")[2].partition("\n\n\n")[0]
    lines = f"async def main{code}".replace("MODEL", '"examples/demo-checkpoint"').splitlines()
    assert "".join(f"{line}\n" for line in lines) in (ROOT / "README.md").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of somebody else, from which docs/embedding.md's paths can be found."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def parts(language: str = "python") -> list[str]:
    """The programs of docs/embedding.md, or what it shows that they print."""
    return [block.text for block in blocks((ROOT / "docs" / "embedding.md").read_text()) if block.language == language]


@pytest.mark.nightly
def test_the_programs_of_the_documentation(project: Path) -> None:
    *programs, _ = parts()
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "".join(parts("text"))


@claim("The pytest fixture works in another project", of="embedding")
def test_the_fixture_in_a_project_of_somebody_else(project: Path) -> None:
    second = (
        "def test_url(blockwright_cluster):\n    cluster = blockwright_cluster('examples/demo-checkpoint', memory='64MiB')\n"
    )
    second += "    import json, urllib.request\n    with urllib.request.urlopen(cluster.url + '/v1/models') as answer:\n"
    second += "        assert json.load(answer)['data'][0]['id'] == 'demo-checkpoint'\n"
    second += "    assert blockwright_cluster('examples/demo-checkpoint', memory='64MiB') is cluster\n"
    (project / "test_theirs.py").write_text(parts()[-1] + "\n\n" + second)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *PLUGIN, "test_theirs.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # as if found by its entry point
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


ASYNC_PROGRAM = """
import asyncio, blockwright
async def main():
    async with blockwright.Cluster({model!r}, memory="64MiB", threads=1, pace={pace!r}) as c:
        async for piece in c.generate("reverse: abc =", max_tokens=400, ignore_eos=True):
            print("streaming", flush=True)
asyncio.run(main())
"""
PLAIN_PROGRAM = """
import blockwright
settings = {{"memory": "64MiB", "threads": 1, "pace": {pace!r}}}
blockwright.generate({model!r}, ["reverse: abc ="] * 40, max_tokens=400, ignore_eos=True, settings=settings, progress=True)
"""


@claim("A cluster that cannot start or is left by Ctrl-C leaves nothing behind", of="embedding")
@pytest.mark.nightly
@pytest.mark.parametrize(("code", "sign"), [(ASYNC_PROGRAM, "streaming"), (PLAIN_PROGRAM, "generating")])
def test_ctrl_c_leaves_nothing_behind(code: str, sign: str, pace: Path) -> None:
    program = Program(["-c", code.format(model=str(MODEL), pace=str(pace))])
    try:
        until_now(lambda: sign in program.out + program.err, f"{sign}: {program.err}")
        assert len(program.processes()) >= 3
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(timeout=PATIENCE) != 0
        program.gone()
        assert program.err.rstrip().endswith("KeyboardInterrupt")
    finally:
        program.destroy()

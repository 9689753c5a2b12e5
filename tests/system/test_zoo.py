"""A server of a zoo answers as one of the folders that it was made from, holds what it serves, and finds it again."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE
from blockwright.tests.zoo.models import doubled, variant

pytestmark = pytest.mark.system
Make = Callable[..., Path]


@pytest.fixture
def folders(checkpoint: Make, tmp_path: Path) -> dict[str, Path]:
    base = checkpoint("llama")
    return {"base": base, "tuned": variant(base, tmp_path / "tuned", {"layers.2.": doubled, "lm_head": doubled})}


@pytest.fixture
def zoo(folders: dict[str, Path], tmp_path: Path) -> Path:
    for name, folder in folders.items():
        assert main(["zoo", "add", str(folder), "--name", name, "--zoo", str(tmp_path / "zoo")]) == 0
    return tmp_path / "zoo"


@pytest.fixture
def server(zoo: Path, folders: dict[str, Path]) -> Iterator[Server]:
    """Of "tuned" in the zoo, of the base there, and of the folder that "tuned" was made from as "plain"."""
    apps = [f"base={zoo / 'chains' / 'base'}", f"plain={folders['tuned']}"]
    found = Server(
        Path("tuned"), arguments=["--zoo", str(zoo), *(word for app in apps for word in ("--app", app))], workers=1
    )
    yield found.whole()
    found.destroy()


def ask(server: Server, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def tokens(server: Server, model: str, prompt: tuple[int, ...]) -> list[int]:
    body = {"model": model, "prompt": list(prompt), "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    (choice,) = ask(server, "/v1/completions", body)["choices"]
    return list(choice["token_ids"])


@claim("A model of a zoo is served as its folder would be", of="fine-tunes")
def test_a_zoo_is_served(server: Server, zoo: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    prompt = prompt_of(30, seed=5)
    for model, folder in {"tuned": folders["tuned"], "plain": folders["tuned"], "base": folders["base"]}.items():
        reference = greedy(folder, prompt, 20)
        assert tokens(server, model, prompt)[: len(reference)] == list(reference), model
    cluster = ask(server, "/admin/cluster")
    applications = cluster["applications"]
    assert applications["plain"]["blocks"] == applications["tuned"]["blocks"]  # the same identities
    assert applications["tuned"]["bytes"]["own"] == 0
    assert applications["tuned"]["checkpoint"] == str(zoo / "chains" / "tuned")
    assert main(["zoo", "remove", "tuned", "--zoo", str(zoo)]) == 2
    assert "application tuned is being served from" in capsys.readouterr().err
    os.kill(cluster["workers"][0]["pid"], signal.SIGKILL)
    again = tokens(server, "tuned", prompt)  # by a worker that has read it anew
    assert again == tokens(server, "plain", prompt)
    server.stop()
    assert main(["zoo", "remove", "tuned", "--zoo", str(zoo)]) == 0


@pytest.mark.nightly
def test_what_is_added_hot_is_held_until_it_is_taken_out(zoo: Path, folders: dict[str, Path]) -> None:
    server = Server(Path("base"), arguments=["--zoo", str(zoo)], workers=1, app_roots=str(zoo))
    try:
        server.whole()
        ask(server, "/admin/apps", {"name": "hot", "path": str(zoo / "chains" / "tuned")})
        prompt = prompt_of(30, seed=5)
        reference = greedy(folders["tuned"], prompt, 20)
        assert tokens(server, "hot", prompt)[: len(reference)] == list(reference)
        remove = ["zoo", "remove", "tuned", "--zoo", str(zoo)]
        assert main(remove) == 2
        ask(server, "/admin/apps/hot", method="DELETE")
        assert main(remove) == 0
        server.stop()
    finally:
        server.destroy()

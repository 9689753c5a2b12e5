"""The page's files, and the key that a browser is asked for."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest

from blockwright.api.http.page_files import FOLDER
from blockwright.api.saving import in_memory

KEYS = {"api_keys": {"alpha-key": "ann"}}
BASIC = {"Authorization": "Basic " + base64.b64encode(b"anyone:alpha-key").decode()}
VENDORED = {  # marked 18.2.1, DOMPurify 3.4.18
    "marked.js": "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
    "purify.js": "8053ee2a6a09f9d50f7fcd6fb7f07072f52c7f3fa9aa12147cab4feaf65ee970",
}
ADDRESS = re.compile(r"(?:src|href)=\"([^\"]+)\"|from \"([^\"]+)\"")


async def test_the_page_and_all_that_it_names_are_served_from_here(serve: Any) -> None:
    client, _ = await serve()
    answer = await client.get("/")
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    for path in sorted(FOLDER.iterdir()):
        served = await client.get(f"/page/{path.name}")
        assert (served.status, await served.read()) == (200, path.read_bytes())
        for named in (a or b for a, b in ADDRESS.findall(path.read_text())):
            assert not named.startswith(("http:", "https:", "//")), "nothing comes from elsewhere"
    for name in ("none.js", "..%2fapp.py"):
        assert (await client.get(f"/page/{name}")).status == 404


def test_the_figure_of_memory_says_what_it_counts_in_the_words_of_ps() -> None:
    meaning = "in memory, as the kernels read them"
    assert meaning in in_memory([1])
    figure = (FOLDER / "index.html").read_text().partition('id="held"')[2].partition("</figure>")[0]
    assert f"{meaning}, added up over all workers" in figure


def test_what_others_wrote_is_as_they_published_it() -> None:
    """docs/decisions/processes.md has the packages and releases; a change of a byte is a change of the release."""
    found = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in VENDORED}
    assert found == VENDORED
    for name in ("marked", "dompurify"):
        assert "opyright" in (FOLDER / f"LICENSE-{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/admin/cluster", "/v1/models"])
async def test_a_browser_is_asked_for_the_key_and_may_send_it_in_its_own_way(serve: Any, path: str) -> None:
    client, _ = await serve(settings=KEYS)
    asked = await client.get(path, headers={"Accept": "text/html,*/*"})
    assert asked.status == 401
    assert asked.headers["WWW-Authenticate"].startswith("Basic ")
    assert (await client.get(path)).headers["WWW-Authenticate"] == "Bearer"
    assert (await client.get(path, headers=BASIC)).status == 200
    assert (await client.get(path, headers={**BASIC, "Sec-Fetch-Site": "same-origin"})).status == 200
    for wrong in (
        "Basic !",
        "Basic " + base64.b64encode(b"alpha-key").decode(),
        "Basic " + base64.b64encode(b":no").decode(),
    ):
        assert (await client.get(path, headers={"Authorization": wrong})).status == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_what_a_browser_adds_by_itself_does_not_count_for_other_sites(serve: Any, say: Any, site: str) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    forged = await client.post("/v1/completions", data=b'{"prompt": "a"}', headers={**BASIC, "Sec-Fetch-Site": site})
    assert forged.status == 403
    assert not port.streams
    bearer = {"Authorization": "Bearer alpha-key", "Sec-Fetch-Site": site}
    assert (await client.post("/v1/completions", json={"prompt": "a"}, headers=bearer)).status == 200

"""``/docs`` in a headless Chromium: every endpoint is listed, and its form sends requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.api.app.routes import ENDPOINTS
from blockwright.tests.equality.served import serve
from blockwright.tests.system.browser import Browser, found

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(found() is None, reason="no Chromium on this machine; install the package chromium"),
]
DEMO = Path(__file__).parents[2] / "examples" / "demo-checkpoint"
ENTRIES = "[...document.querySelectorAll('#endpoints > details')].filter((e) => {which})"
SEND = ENTRIES + "[0].querySelector('button').click(); true"
SHOWN = ENTRIES + "[0].querySelector('pre').textContent"


async def test_the_page_lists_all_and_sends() -> None:
    async with serve({"demo-checkpoint": DEMO}, memory=64 << 20) as server, Browser() as browser:
        await browser.open(server.url + "/docs")
        await browser.wait("document.querySelectorAll('#endpoints > details').length > 10")
        listed = await browser.look(ENTRIES.format(which="e.querySelector('summary b').textContent !== 'type'") + ".length")
        assert listed == len(ENDPOINTS)
        for path, wanted in (
            ("/tokenize", '"token_strs"'),
            ("/v1/completions", '"text_completion"'),
            ("/version", '"numerics"'),
        ):
            which = f"e.querySelector('summary code').textContent === '{path}'"
            await browser.look(SEND.format(which=which))
            await browser.wait(SHOWN.format(which=which) + ".startsWith('200')")
            await browser.wait(SHOWN.format(which=which) + f".includes('{wanted}')")

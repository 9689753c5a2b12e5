"""A headless Chromium, spoken to over its debugging protocol: opens a page, evaluates, takes pictures.

Owns one browser process with a profile of its own. Collects what the page logs as an error, and every address it asks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientSession, ClientWebSocketResponse

from blockwright.tests.waiting import PATIENCE, until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    """The browser's path, if there is one on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """``async with Browser() as browser:``; one page."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._size = (width, height)
        self._profile = Path(tempfile.mkdtemp(prefix="bw-browser-"))
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []
        self.asked: list[str] = []  # addresses

    async def __aenter__(self) -> Self:
        path = found()
        assert path is not None
        width, height = self._size
        self._process = await asyncio.create_subprocess_exec(
            path,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--window-size={width},{height}",
            f"--user-data-dir={self._profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        outcome = self._profile / "DevToolsActivePort"
        await until(lambda: outcome.is_file() and outcome.read_text().count("\n"), "the browser's port")
        self._session = ClientSession()
        pages = f"http://127.0.0.1:{outcome.read_text().splitlines()[0]}/json"

        async def opened() -> dict[str, Any] | None:
            async with self._session.get(pages) as answer:
                return next((target for target in await answer.json() if target["type"] == "page"), None)

        page = await until(opened, "the browser's page")
        self._socket: ClientWebSocketResponse = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._do(f"{domain}.enable")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()
        await self._session.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    async def open(self, url: str) -> None:
        await self._do("Page.navigate", url=url)

    async def look(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        answer = await self._do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait(self, expression: str) -> Any:
        """The first true value of the expression; one that fails is not true yet."""
        careful = f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"
        return await until(lambda: self.look(careful), expression)

    async def shape(self, width: int, *, dark: bool) -> None:
        """Show the page as wide as another device, in one of the two color schemes."""
        await self._do(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._do("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        answer = await self._do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    async def _do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE):
            return await future

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event.get("result", event.get("error")))
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(event["params"]["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent":
                self.asked.append(event["params"]["request"]["url"])

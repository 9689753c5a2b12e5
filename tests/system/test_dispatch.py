"""Dispatch by forecasts in real processes: the story of a request says why it went where it went, and predictors may die."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim
from blockwright.tests.system.conftest import PACE
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_gateways import ask, fresh, look, pid_of
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
FELL_BACK = re.compile(r'^blockwright:dispatch_fallback_total\{reason="(\w+)"\} (\S+)$', re.MULTILINE)


async def story(client: ClientSession) -> dict[str, Any]:
    """Of a request that was answered."""
    status, answer = await ask(client)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    status, view = await look(client, f"/v1/requests/{answer['id']}")
    assert status == 200
    found: dict[str, Any] = view
    return found


async def forecast(client: ClientSession) -> dict[str, Any] | None:
    """The story of a request for which both workers had a forecast; one of their routes may be news to the gateway."""
    view = await story(client)
    candidates = view["dispatch"]["candidates"] if view["dispatch"] else []
    return view if sum(one["forecast"] is not None for one in candidates) == 2 else None


async def fallbacks(client: ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as answer:
        return {reason: float(count) for reason, count in FELL_BACK.findall(await answer.text())}


async def followed(client: ClientSession, worker: str, feeds: int) -> bool:
    """Whether a worker's predictor has followed so many of its lives and never differed from it."""
    async with client.get("/metrics") as answer:
        values = dict(
            re.findall(rf'^blockwright:predictor_(\w+)\{{worker="{worker}"\}} (\S+)$', await answer.text(), re.MULTILINE)
        )
    assert values.get("disagreements", "0.0") == "0.0"
    return values.get("replica") == "1.0" and float(values["feeds"]) >= feeds


@claim("A late or dead predictor costs at most its time-out", of="prediction")
async def test_a_request_goes_where_it_is_forecast_to_end_soonest_and_without_predictors_it_goes_somewhere(
    serve: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"coefficients": {"base": PACE}}))
    server = serve(dispatch="ours", profile=profile, gateways=2, dispatch_timeout=1, dispatch_sample=1).whole()
    async with fresh(server) as client:
        view = await until(lambda: forecast(client), "predictors that follow both workers")
        shown = view["dispatch"]
        assert (shown["policy"], shown["fell_back"], shown["rank"], shown["ranked"]) == ("ours", "", 1, 2)
        assert shown["candidates"][0]["home"] == view["home"]
        assert {one["home"] for one in shown["candidates"]} == {"w0", "w1"}
        loads = [one["load"] for one in shown["candidates"]]
        assert loads[0] == min(loads)
        assert 0 < shown["actual"]["first_token"] <= shown["actual"]["last_token"]
        assert shown["candidates"][0]["forecast"]["last_token"] > PACE
        assert shown["error"].keys() == {"first_token", "last_token"}
        (asked,) = [event for event in view["events"] if event["event"] == "asked"]
        assert 0 < asked["seconds"] < shown["actual"]["first_token"]

        assert main(["explain", view["id"], "--url", server.url]) == 0
        out = capsys.readouterr().out
        assert f"* {shown['route']}" in out
        assert "last token: predicted after" in out
        assert main(["explain", "cmpl-none", "--url", server.url]) == 2
        points = (await look(client, "/admin/forecasts"))[1]["data"]
        assert view["id"] in {point["request"] for point in points}, "whichever process is asked"

        victim = pid_of(server, "bw-predictors")
        os.kill(victim, signal.SIGKILL)

        async def fell_back() -> bool:
            return bool((await story(client))["dispatch"]["fell_back"])

        await until(fell_back, "a request that is answered without them")
        assert sum((await fallbacks(client)).values()) > 0
        await until(lambda: forecast(client), "predictors that follow both workers again")
        assert pid_of(server, "bw-predictors") not in (0, victim)

        os.kill(pid_of(server, "bw-w1"), signal.SIGKILL)
        await until(lambda: followed(client, "w1", feeds=2), "a predictor that follows the next life of its worker")
        await until(lambda: forecast(client), "forecasts for both workers once more")
    server.stop()

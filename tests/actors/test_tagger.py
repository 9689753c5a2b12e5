"""The tagger actor and its file: what gateways share, what survives a restart, what happens without it."""

from __future__ import annotations

import json
import logging
import math
import stat
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.tagging import SECONDS, Tagging, check_tagging
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.settings.tagging import TaggerSettings
from blockwright.actors.tagger.actor import SAVE_SECONDS, Tagger, TaggerModel
from blockwright.actors.tagger.model_file import TaggerFile, TaggerFileError, read_tagger, write_tagger
from blockwright.policies.prediction.length_history import LengthHistory
from blockwright.policies.prediction.length_models import restored
from blockwright.policies.prediction.length_regression import LengthRegression
from blockwright.policies.prediction.lengths import TERMS, Accuracy, Features, LengthSample
from blockwright.policies.requests.book.lengths import Lengths
from blockwright.runtime import ManualClock, Node
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack, unpack
from blockwright.runtime.base.decoding import decode
from blockwright.tests.waiting import until

OF = Features("m", 10, 500, terms=(1, 2, 3))
LESSONS = [LengthSample(OF, 40, True)] * 30
UNTRAINED = LengthRegression.untrained().snapshot()


class House:
    """A node with a clock of its own, on which a tagger lives."""

    def __init__(self, settings: Settings) -> None:
        self.clock = ManualClock()
        self.node = Node("head", listen=False, clock=self.clock)
        self.settings = settings

    async def __aenter__(self) -> House:
        await self.node.start()
        self.tagger = await self.node.spawn(Tagger(self.settings.tagging), name="tagger")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.stop()


async def test_it_learns_what_gateways_bring_and_answers_with_a_model_that_is_new() -> None:
    async with House(Settings(tagger="history")) as house:
        first = await house.tagger.share([], "")
        assert restored(first.estimator).estimate(OF) == 0
        assert await house.tagger.share([], first.version) is None
        second = await house.tagger.share(LESSONS, first.version)
        assert restored(second.estimator).estimate(OF) == 40
        assert await house.tagger.share([], first.version) == second


def test_lessons_and_models_travel_between_processes() -> None:
    history = LengthHistory()
    history.learn(LESSONS[0])
    for kind, value in {list[LengthSample]: LESSONS, TaggerModel: TaggerModel("1", history.snapshot())}.items():
        assert decode(kind, unpack(pack(encode(value, Sink())))) == value
    assert restored(decode(dict[str, Any], unpack(pack(history.snapshot())))).snapshot() == history.snapshot()


async def test_gateways_share_beside_their_requests_and_go_on_while_the_tagger_is_dead() -> None:
    async with House(Settings(tagger="history")) as house:
        one, other = (Lengths(wanted=True) for _ in range(2))
        shares = [Tagging(lengths, "head/tagger") for lengths in (one, other)]
        one._lessons += LESSONS
        for share in shares:
            share.tick(house.node)
        await until(lambda: one.estimator is not None and other.estimator is not None)
        assert one.estimator is not None
        assert one.estimator.estimate(OF) == 40
        shares[1].tick(house.node)  # not yet: it has just looked
        house.clock.advance(SECONDS)
        shares[1].tick(house.node)
        await until(lambda: other.estimator is not None and other.estimator.estimate(OF) == 40)
        await house.node.kill_actor(house.tagger)
        house.clock.advance(SECONDS)
        shares[0].tick(house.node)
        await until(lambda: one.figures.unanswered == 1)
        assert one.estimator.estimate(OF) == 40


async def test_what_ended_last_is_learned_when_a_gateway_stops() -> None:
    async with House(Settings(tagger="history")) as house:
        lengths = Lengths(wanted=True)
        tagging = Tagging(lengths, "head/tagger")
        tagging.tick(house.node)
        lengths._lessons += LESSONS
        await tagging.stop(house.node)
        assert restored((await house.tagger.share([], "")).estimator).estimate(OF) == 40
        assert lengths.take() == []


async def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    settings = Settings(tagger="history", tagger_folder=str(tmp_path))
    async with House(settings) as house:
        await house.tagger.share(LESSONS, "")
        house.clock.advance(SAVE_SECONDS)
        await until((tmp_path / "tagger.json").exists)
        assert stat.S_IMODE((tmp_path / "tagger.json").stat().st_mode) == 0o600
        await house.tagger.share([LengthSample(OF, 400, True)] * 300, "")
    for _ in range(2):  # once from what was kept at its end, once from what was not changed
        async with House(settings) as house:
            assert restored((await house.tagger.share([], "")).estimator).estimate(OF) > 200


async def test_a_setting_that_changed_begins_anew_and_so_does_a_damaged_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with House(Settings(tagger="history", tagger_folder=str(tmp_path))) as house:
        await house.tagger.share(LESSONS, "")
    model = LengthRegression.untrained()
    for lesson in LESSONS:
        model.learn(lesson)
    write_tagger(tmp_path / "trained.json", TaggerFile(model))
    settings = Settings(tagger=f"trained:{tmp_path / 'trained.json'}", tagger_folder=str(tmp_path))
    check_tagging(settings.tagging)
    async with House(settings) as house:
        assert (await house.tagger.share([], "")).estimator == model.snapshot()
        await house.tagger.share(LESSONS[:1], "")
    async with House(settings) as house:
        assert (await house.tagger.share([], "")).estimator["lessons"] == len(LESSONS) + 1, "it goes on from what it kept"
    (tmp_path / "tagger.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        async with House(settings) as house:
            assert (await house.tagger.share([], "")).estimator == model.snapshot()
        (tmp_path / "tagger.json").unlink()
        (tmp_path / "trained.json").unlink()
        async with House(settings) as house:
            assert (await house.tagger.share([], "")).estimator["kind"] == "history"
    assert "the tagger starts from nothing, because its file cannot be read" in caplog.text
    assert "the tagger begins with nothing: tagger: " in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; give a file that blockwright tagger train has written"),
        ("{", "train it again: blockwright tagger train LOG -o"),
        ("[]", "schema is None, not 1"),
        ({"schema": 7}, "schema is 7, not 1"),
        ({"estimator": 3}, "estimator and figures are no objects"),
        ({"estimator": {"kind": "trained", "weights": [1]}}, "weights has 1, not 1024 numbers; train it again"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ({"estimator": {"kind": ["trained"]}}, r"estimator.kind is \['trained'\], not a name"),
        ({"estimator": UNTRAINED | {"weights": [10**400] * TERMS}}, "int too large to convert to float; train it again"),
        ({"figures": {"history": dict.fromkeys(Accuracy().figures(), 10**400)}}, "figures.history is .*, without one of"),
        ({"figures": {"history": dict.fromkeys(Accuracy().figures(), math.nan)}}, "figures.history is .*, without one of"),
        ({"figures": {"history": {"requests": 3}}}, "figures.history is .*, without one of requests, mean_error"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "model.json"
    good = {"schema": 1, "figures": {}, "estimator": UNTRAINED}
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(good | content))  # type: ignore[operator]
    with pytest.raises(TaggerFileError, match=f"model.json: .*{message}"):
        read_tagger(path)
    with pytest.raises(SettingsError, match=f"tagger: .*model.json: .*{message}"):
        check_tagging(TaggerSettings(tagger=f"trained:{path}"))


def test_settings_that_cannot_be() -> None:
    for tagger in ("on", "trained:", "trained"):
        with pytest.raises(SettingsError, match=f"tagger is '{tagger}'; choose one of off, history, trained:FILE"):
            Settings(tagger=tagger)
    with pytest.raises(SettingsError, match="request_log_size is 5; give at least 65536 bytes"):
        Settings(request_log_size=5)

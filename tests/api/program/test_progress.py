"""The progress bar of an offline job."""

import pytest

from blockwright.api.program.duration import duration
from blockwright.api.program.progress import Bar, progress_text
from blockwright.policies.offline.job_account import FeedProgress


def job(done_tokens: int, remaining: float | None) -> FeedProgress:
    return FeedProgress(
        total=10,
        done=5,
        running=1,
        sampled=0,
        sampling=False,
        prompt_tokens=100,
        done_tokens=done_tokens,
        remaining_tokens=50.0,
        remaining_seconds=remaining,
        density=1.0,
        sharing=0.5,
        sharing_best=0.6,
        given_back=0,
        sides={},
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_times_are_written_as_people_say_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_jobs_of_several_models_are_reported_together() -> None:
    assert progress_text([job(100, 30.0), job(300, 70.0)], 4.0) == "100 tok/s, about 1 min 10 s left"
    assert progress_text([job(0, None)], 1.0) == "0 tok/s"


def test_the_bar_shows_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(3, estimated=False, shown=True) as bar:
        bar.begin("checking")
        bar.begin("answering", done=1)
        bar.advance(2)
        bar.show([job(100, 5.0)])
    shown = capsys.readouterr().err
    assert "answering" in shown
    assert "3/3" in shown
    with Bar(3, estimated=False, shown=False) as bar:
        bar.advance(1)
    assert capsys.readouterr().err == ""

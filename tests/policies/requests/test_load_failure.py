"""Load failures: what their clients read of them."""

from __future__ import annotations

import pytest

from blockwright.policies.requests.load_failure import blocked, reasons, without_folders


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("[Errno 2] No such file or directory: '/srv/models/t/config.json'", "No such file or directory: 't/config.json'"),
        ("/srv/models/t: no config.json", "t: no config.json"),
        ("/srv/my models/t 2/model.safetensors is cut off", "t 2/model.safetensors is cut off"),
        ("model/layers.0 has 3/4 of its bytes, https://a.b/c", "model/layers.0 has 3/4 of its bytes, https://a.b/c"),
        ("more memory (--set memory=...), or /x (/y/z)", "more memory (--set memory=...), or x (z)"),
    ],
)
def test_paths_lose_their_folders(message: str, shown: str) -> None:
    assert without_folders(message, ("/srv/models/t", "/srv/my models/t 2", "")).endswith(shown)
    assert "/srv" not in without_folders(message, ("/srv/models/t", "/srv/my models/t 2"))


def test_a_name_of_the_hub_is_no_path() -> None:
    assert without_folders("org/model has no config.json", ("org/model",)) == "org/model has no config.json"


def test_it_can_come_nowhere_when_each_route_passes_a_worker_that_cannot_load_it() -> None:
    routes = [["w0"], ["w1", "w2"]]
    assert blocked(routes, {"w0": "", "w2": ""})
    assert blocked(routes, {"w0", "w1", "w2"})
    assert not blocked(routes, {"w1", "w2"})


def test_the_reasons_of_all_workers_are_one_sentence() -> None:
    assert reasons({"w0": "it is gone"}) == "worker w0: it is gone"
    assert (
        reasons({"w0": "it is gone", "w1": "no room", "w2": "it is gone"})
        == "workers w0, w2: it is gone; worker w1: no room"
    )

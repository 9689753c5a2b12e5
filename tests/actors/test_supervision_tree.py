"""Who is started by whom, for which settings; that it is what runs is ``test_topology``'s and the system tests'."""

from __future__ import annotations

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.supervision_tree import dispatchers, gateway_nodes, in_head, tree
from blockwright.runtime.node.actor_classes import load_class
from blockwright.runtime.supervisor import Child
from blockwright.runtime.tree import Branch, ProcessSpec, lines

GATEWAY = "blockwright.api.serve.gateway_process:start"

SMALL = """\
root: one for one, at most 0 restarts in 5 s
  services: one for one, at most 3 restarts in 5 s
    applications: Applications
  gateway: Gateway
  controller: Controller
  peer: GatewayPeer
  workers: one for one, never gives up
    w0: process of blockwright.actors.worker.main:start
      root: one for one, at most 0 restarts in 5 s
        blocks: Blocks
        worker: Worker
  gateways: one for one, never gives up"""
APART = """\
root: one for one, at most 0 restarts in 5 s
  services: one for one, at most 3 restarts in 5 s
    limiter: Limiter
    applications: Applications
  controller: Controller
  peer: GatewayPeer
  workers: one for one, never gives up
    w0: process of blockwright.actors.worker.main:start
      root: one for one, at most 0 restarts in 5 s
        blocks: Blocks
        worker: Worker
  gateways: one for one, never gives up
    g0: process of blockwright.api.serve.gateway_process:start
      root: one for one, at most 0 restarts in 5 s
        gateway: Gateway
        peer: GatewayPeer
    g1: process of blockwright.api.serve.gateway_process:start
      root: one for one, at most 0 restarts in 5 s
        gateway: Gateway
        peer: GatewayPeer"""


def test_on_a_small_machine_the_head_has_a_gateway() -> None:
    assert "\n".join(lines(tree(Settings(), first_in_head=True, gateway_entry=GATEWAY))) == SMALL
    embedded = "\n".join(lines(tree(Settings(gateways=2))))
    assert "peer" not in embedded
    assert "g1" not in embedded


def test_on_a_larger_one_each_gateway_is_a_process() -> None:
    settings = Settings(gateways=2, requests_per_minute={"*": 5})
    assert "\n".join(lines(tree(settings, first_in_head=False, gateway_entry=GATEWAY))) == APART
    assert gateway_nodes(settings.network, first_in_head=False) == ["g0", "g1"]
    assert gateway_nodes(settings.network, first_in_head=True) == ["head", "g1"]


PREDICTORS = """\
    predictors: process of blockwright.actors.predictor.main:start
      root: one for one, at most 3 restarts in 5 s
        predictor-w0: Predictor
        dispatcher-0: Dispatcher"""


def test_dispatchers_are_beside_the_predictors_that_they_ask() -> None:
    settings = Settings(dispatch="ours")
    assert "\n".join(lines(tree(settings, gateway_entry=GATEWAY))).endswith(PREDICTORS)
    assert dispatchers(settings.dispatching) == {"dispatcher-0": "predictors/dispatcher-0"}
    settings = Settings(dispatch="round-robin")
    assert "    dispatcher-0: Dispatcher" in lines(tree(settings, gateway_entry=GATEWAY))
    assert dispatchers(settings.dispatching) == {"dispatcher-0": "head/dispatcher-0"}
    assert dispatchers(Settings().dispatching) == {}


def test_which_machines_are_small() -> None:
    assert [in_head(Settings().network, cores) for cores in (1, 2, 3, 64)] == [True, True, False, False]
    assert in_head(Settings(gateway_in_head="yes").network, 64)
    assert not in_head(Settings(gateway_in_head="no").network, 1)
    with pytest.raises(SettingsError, match="gateway_in_head is 'maybe'; choose one of auto, yes, no"):
        Settings(gateway_in_head="maybe")


def test_what_the_tree_names_is_there() -> None:
    def actors(branch: Branch) -> list[Child]:
        found = []
        for child in branch.children:
            inside = child.inside if isinstance(child, ProcessSpec) else child
            found += actors(inside) if isinstance(inside, Branch) else [inside]
        return found

    every = actors(
        tree(
            Settings(gateways=2, requests_per_minute={"*": 5}, tagger="history", dispatch="ours", dispatchers=2),
            gateway_entry=GATEWAY,
        )
    )
    assert [child.name for child in every if child.name.startswith("dispatcher")] == ["dispatcher-0", "dispatcher-1"]
    assert {load_class(child.actor).__name__ for child in every} == {
        "Applications", "Limiter", "Gateway", "Controller", "GatewayPeer", "Worker", "Blocks", "Tagger", "Dispatcher",
        "Predictor",
    }  # fmt: skip
    assert all(child.drain == 0.0 for child in every)

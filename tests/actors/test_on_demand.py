"""Applications that do not fit beside the others are parked, asked for and make room; without any worker or gateway."""

from __future__ import annotations

from typing import Any

from blockwright.actors.controller.messages import (
    Add,
    Added,
    Application,
    ApplicationsWanted,
    AskRoom,
    AskUse,
    AwaitQuiet,
    Effect,
    Event,
    Fatal,
    Load,
    Loaded,
    LoadFailed,
    LoadRefused,
    LookAgain,
    LookLater,
    Quiet,
    Remove,
    Room,
    Serve,
    Unload,
    Used,
    WorkerDown,
    WorkerUp,
)
from blockwright.actors.controller.state import ControllerState
from blockwright.actors.controller.view import cluster_view
from blockwright.actors.worker.messages import NoRoom
from blockwright.policies.cluster.demand import PATIENCE, SETTLING, Use
from blockwright.policies.model.chain import Component, Kind, KvLayout

KV = KvLayout(1, 8, "float32", 16)
SIZE = 100  # bytes of a component


def application(name: str, ids: str, kv: KvLayout = KV) -> Application:
    parts = [Component(c.encode() * 16, Kind.ATTENTION, SIZE, 8, 8, kv) for c in ids]
    return Application(name, "/models/" + name, tuple(parts), 4096, model=name)


class House:
    """A controller whose workers have room for so many components and answer at once, as gateways do."""

    def __init__(self, room: int, workers: tuple[str, ...] = ("w0",), **options: Any) -> None:
        self.state = ControllerState(workers, stall_timeout=10.0, **options)
        self.room, self.now = room, 0.0
        self.ending = 0  # components that were unloaded, and that plans which run still name
        self.spare = 1 << 20  # bytes beside those components, for KV
        self.held: dict[str, dict[bytes, set[str]]] = {name: {} for name in workers}
        self.active: dict[str, int] = {}
        self.waits: dict[str, int] = {}  # application -> tokens of the longest that waits for it
        self.last: dict[str, float] = {}
        self.awaited: list[str] = []  # to become quiet
        self.looks = 0
        self.log: list[Effect] = []
        self.broken: dict[str, str] = {}  # application -> why a worker cannot load it

    def __call__(self, event: Event) -> list[Effect]:
        effects = self.state.handle(event, self.now)
        self.state.check()
        self.log += effects
        for effect in effects:
            for answer in self.answers(effect):
                self(answer)
        return effects

    def answers(self, effect: Effect) -> list[Event]:
        match effect:
            case Load(worker, incarnation, load) if load.holder in self.broken:
                return [LoadFailed(worker, incarnation, load, self.broken[load.holder])]
            case Load(worker, incarnation, load):
                held = self.held[worker]
                lacking = len(held.keys() | set(load.ids)) + self.ending - self.room
                if lacking > 0:
                    why = NoRoom("no room", lacking * SIZE, len(set(load.ids)) > self.room, self.owned(worker))
                    return [LoadRefused(worker, incarnation, load, why)]
                for id in load.ids:
                    held.setdefault(id, set()).add(load.holder)
                return [Loaded(worker, incarnation, load)]
            case Unload(worker, _, holder, ids):
                for id in ids:
                    self.held[worker][id].remove(holder)
                    if not self.held[worker][id]:
                        del self.held[worker][id]
            case AskRoom(worker, incarnation):
                left = self.spare + SIZE * (self.room - len(self.held[worker]))
                return [Room(worker, incarnation, left, self.left_alone(worker), self.owned(worker))]
            case AskUse():
                idle = {name: Use(0, self.now - at) for name, at in self.last.items()}
                active = {name: Use(n, 0.0, self.waits.get(name, 0)) for name, n in self.active.items() if n}
                return [Used({**idle, **active})]
            case AwaitQuiet(name):
                self.awaited.append(name)
            case LookLater():
                self.looks += 1
        return []

    def names(self, worker: str) -> set[str]:
        return {name for holders in self.held[worker].values() for name in holders}

    def owned(self, worker: str) -> dict[str, int]:
        held = self.held[worker].values()
        return {name: SIZE * sum(holders == {name} for holders in held) for name in self.names(worker)}

    def left_alone(self, worker: str) -> dict[str, int]:
        held = self.held[worker].values()
        return {n: self.spare + SIZE * (self.room - sum(n in holders for holders in held)) for n in self.names(worker)}

    def start(self, *applications: Application) -> House:
        self(Serve(applications))
        for name in self.state.workers:
            self(WorkerUp(name, 1))
        return self

    def want(self, name: str, tokens: int = 9) -> None:
        self.active[name] = self.active.get(name, 0) + 1
        self(ApplicationsWanted({name: tokens}))

    def end(self, name: str) -> None:
        self.active[name] -= 1
        self.last[name] = self.now

    def look(self, seconds: float) -> None:
        self.now += seconds
        self(LookAgain())

    def told(self) -> list[str]:
        """Applications that gateways can start requests of."""
        return sorted(route.application for route in self.state.table.news().routes)

    def failed(self) -> list[tuple[str, str, bool]]:
        """What gateways are told of applications that can come nowhere."""
        return [(one.application, one.why, one.final) for one in self.state.publication().failed]

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in cluster_view(self.state, {}, {}, [], [])["applications"].items()}


def house(**options: Any) -> House:
    """A base of four components, and tunes of it with two of their own, of which two have room."""
    tunes = [application(f"t{i}", "abcd" + own) for i, own in enumerate(("pP", "qQ", "rR", "sS"))]
    return House(8, **options).start(application("base", "abcd"), *tunes)


def test_what_has_no_room_is_on_demand_and_the_rest_is_served():
    made = house()
    assert made.told() == ["base", "t0", "t1"]
    assert made.states() == {"base": "ready", "t0": "ready", "t1": "ready", "t2": "on demand", "t3": "on demand"}
    assert made.state.serves
    assert made.state.whole
    assert made.state.publication().on_demand == ["t2", "t3"]
    assert not [effect for effect in made.log if isinstance(effect, Fatal)]


def test_the_first_request_brings_it_in_place_of_the_least_recently_used():
    made = house()
    made.now = 10.0
    made.last = {"t0": 5.0, "t1": 2.0, "base": 1.0}
    made.want("t2")
    assert made.told() == ["base", "t0", "t2"], "the base would free nothing while others have its tensors"
    assert made.states()["t1"] == "on demand"
    assert made.held["w0"].keys() == {c.encode() * 16 for c in "abcdpPrR"}
    made.want("t2")
    assert made.told() == ["base", "t0", "t2"]


def test_one_that_needs_more_takes_the_place_of_several():
    made = house()
    made(Serve((application("large", "ABCDEF"),)))
    made.now = 10.0
    made.want("large")
    assert made.told() == ["large"], "what the others share goes with the last of them"


def test_a_whole_model_comes_in_place_of_tunes_whose_base_is_not_here():
    """What these share is nobody's own, so what they own does not seem enough."""
    made = House(8).start(application("t0", "abcdpP"), application("t1", "abcdqQ"), application("whole", "stuvwxy"))
    assert made.told() == ["t0", "t1"]
    made.want("whole")
    assert made.told() == ["whole"]
    assert made.states() == {"t0": "on demand", "t1": "on demand", "whole": "ready"}


def test_it_is_tried_again_when_all_have_gone_whose_memory_was_not_free_yet():
    """Nobody was left to give way, and nothing told that their last plans had ended: nothing came for ever."""
    made = House(6).start(application("t0", "abcdpP"), application("whole", "stuvwx"))
    assert made.told() == ["t0"]
    made.ending = 2
    made.want("whole")
    for _ in range(3):
        assert made.told() == []
        loads = [effect for effect in made.log if isinstance(effect, Load)]
        made.look(0.03)
        assert len([effect for effect in made.log if isinstance(effect, Load)]) == len(loads) + 1, "once in each look"
    made.ending = 0
    made.look(0.03)
    assert made.told() == ["whole"]


def test_what_is_in_use_stays_until_its_turn_is_over_and_starts_nothing_new_then():
    made = house()
    made.active = {"t0": 1, "t1": 2, "base": 1}
    made.now = 100.0
    made.want("t2")
    assert made.told() == ["base", "t0", "t1"]
    assert made.looks == 1
    made.look(1.1 * PATIENCE)
    (leaving,) = made.awaited
    assert made.told() == sorted({"base", "t0", "t1"} - {leaving})
    assert leaving in {route.application for route in made.state.table.parts({"w0": 0})["w0"].routes}, "workers go on"
    made.active[leaving] = 0
    made(Quiet(leaving))
    assert made.told() == sorted({"base", "t0", "t1", "t2"} - {leaving})
    assert made.states()[leaving] == "on demand"


def test_nothing_has_to_leave_when_something_else_becomes_idle():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t2")
    made.look(1.1 * PATIENCE)
    (leaving,) = made.awaited
    (idle,) = {"t0", "t1"} - {leaving}
    made.end(idle)
    made.look(0.1)
    assert made.told() == sorted({"base", leaving, "t2"})
    made(Quiet(leaving))
    assert made.told() == sorted({"base", leaving, "t2"}), "a late answer"


def test_they_come_in_the_order_in_which_they_were_asked_for_and_each_has_its_turn():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t3")
    made.want("t2")
    made.end("t0")
    made.look(0.1)
    assert made.told() == ["base", "t1", "t3"]
    assert made.state.demand.coming == "t2"
    made.look(1.1 * PATIENCE)
    assert made.awaited == ["t1"], "t3 has just come"


def test_who_asked_and_went_makes_nobody_leave():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.want("t2")
    made.end("t2")
    made.look(1.1 * PATIENCE)
    assert made.told() == ["base", "t0", "t1"]
    assert made.awaited == []
    assert not made.state.demand.coming


def test_on_two_workers_it_comes_to_both():
    made = house(workers=("w0", "w1"))
    made.want("t3")
    assert [sorted(held) for held in made.held.values()] == [sorted(made.held["w0"])] * 2
    assert made.told().count("t3") == 2


def test_after_a_death_what_was_resident_is_loaded_again():
    made = house()
    made.want("t3")
    before = made.told()
    made(WorkerDown("w0", 1, "killed"))
    made.held["w0"] = {}
    made(WorkerUp("w0", 2))
    assert made.told() == before
    made.want("t2")
    assert "t2" in made.told()


def test_an_addition_without_room_is_served_on_demand():
    made = house()
    made(Add(application("t9", "abzZ")))
    assert made.states()["t9"] == "on demand"
    assert Added("t9") in made.log
    made.want("t9")
    assert "t9" in made.told()
    made(Remove("t9"))
    assert "t9" not in made.states()
    made.want("t2")
    assert "t2" in made.told()


def test_what_never_fits_is_refused():
    made = house()
    made(Add(application("huge", "123456789")))
    assert Added("huge", "worker w0 cannot load it: no room") in made.log
    assert "huge" not in made.states()


def test_without_on_demand_what_does_not_fit_is_refused():
    made = house(on_demand=False)
    assert [effect.message for effect in made.log if isinstance(effect, Fatal)] == [
        "worker w0 cannot load t2: no room",
        "worker w0 cannot load t3: no room",
    ]


def test_one_that_is_removed_while_it_comes_holds_nothing_up():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t2")
    made.look(1.1 * PATIENCE)
    made(Remove("t2"))
    assert made.told() == ["base", "t0", "t1"]
    made.end("t0")
    made.want("t3")
    assert "t3" in made.told()


def test_what_cannot_be_loaded_is_parked_with_the_reason_and_tried_again_when_it_is_asked_for():
    made = house()
    made.broken["t3"] = "FileNotFoundError: '/models/t3/config.json'"
    made.want("t3")
    assert made.failed() == [("t3", "worker w0: FileNotFoundError: 't3/config.json'", False)]
    assert made.states()["t3"] == "on demand"
    assert made.state.demand.coming == "", "others can come"
    assert made.state.publication().failed == made.state.table.news(made.state.version - 1).failed
    first = made.state.publication().failed[0].number
    made.want("t3")
    assert made.state.publication().failed[0].number > first, "the second failure is news"
    made.broken.clear()
    made.want("t3")
    assert ("t3" in made.told(), made.failed()) == (True, [])


def test_it_can_come_where_another_worker_can_load_it():
    made = house(workers=("w0", "w1"))
    made(WorkerDown("w1", 1, "killed"))
    made.broken["t3"] = "the disk of w0"
    made.want("t3")
    assert made.failed() == [], "w1 may come back, and be able to"
    made.broken.clear()
    made.held["w1"] = {}
    made(WorkerUp("w1", 2))
    made.want("t3")
    assert "t3" in made.told()


def test_what_has_all_the_memory_and_still_no_room_is_refused_for_good():
    """Its blocks fit one by one, so that no worker says that it never does."""
    huge = application("huge", "abcdefghi")
    made = House(8).start(application("base", "abcd"), application("t0", "abcdpP"), huge)
    made.active = {"huge": 1}
    made(ApplicationsWanted({"huge": 9}))
    assert made.told() == []
    made.look(SETTLING / 2)
    made.look(0.0)
    assert made.failed() == [], "what went may not have ended"
    for _ in range(4):
        made.look(SETTLING / 3)
    assert made.failed() == [("huge", "worker w0: no room", True)]
    before = len(made.log)
    made(ApplicationsWanted({"huge": 9}))
    assert made.log[before:] == [], "nobody is unloaded for it again"
    made.want("t0")
    assert made.told() == ["t0"]


def test_what_is_not_on_demand_and_cannot_be_loaded_waits_for_its_workers():
    made = house()
    made.broken["base"] = "it is gone"
    made(WorkerDown("w0", 1, "killed"))
    made.held["w0"] = {}
    made(WorkerUp("w0", 2))
    assert made.failed() == [("base", "worker w0: it is gone", True)]
    made.broken.clear()
    made(WorkerDown("w0", 2, "killed"))
    assert made.failed() == []
    made.held["w0"] = {}
    made(WorkerUp("w0", 3))
    assert ("base" in made.told(), made.failed()) == (True, [])


def test_an_idle_base_stays_while_its_tunes_are_in_use():
    made = house()
    made.active = {"t0": 1, "t1": 1}
    made.now = 100.0
    made.want("t2")
    assert made.told() == ["base", "t0", "t1"], "its tensors would not become free"
    made.end("t0")
    made.look(0.1)
    assert made.told() == ["base", "t1", "t2"]

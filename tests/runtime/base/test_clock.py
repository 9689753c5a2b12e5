from blockwright.runtime import LoopClock, ManualClock


def test_manual_time_runs_what_falls_due_in_order():
    clock, seen = ManualClock(0.0), []
    clock.call_at(2.0, lambda: seen.append(("b", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("a", clock.now())))
    clock.call_at(2.0, lambda: seen.append(("c", clock.now())))
    clock.call_at(1.5, lambda: seen.append("never")).cancel()
    clock.advance(0.5)
    assert seen == []
    clock.advance(1.5)
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0)]


def test_callbacks_may_add_more():
    clock, seen = ManualClock(0.0), []

    def tick():
        seen.append(clock.now())
        clock.call_at(clock.now() + 1.0, tick)

    tick()
    clock.advance(3.0)
    assert seen == [0.0, 1.0, 2.0, 3.0]


def test_a_jump_runs_everything_late():
    clock, seen = ManualClock(0.0), []
    for when in (2.0, 1.0, 9.0):
        clock.call_at(when, lambda when=when: seen.append((when, clock.now())))
    clock.jump(5.0)
    assert seen == [(1.0, 5.0), (2.0, 5.0)]
    clock.advance(4.0)
    assert seen[-1] == (9.0, 9.0)


async def test_loop_time():
    clock = LoopClock()
    before = clock.now()
    clock.call_at(before + 60, lambda: None).cancel()
    assert clock.now() >= before

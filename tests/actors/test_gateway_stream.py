"""A client's stream: order, merging for slow readers, ends and errors."""

import asyncio

import pytest

from blockwright.actors.gateway.port import Listener
from blockwright.actors.gateway.stream import Offers, RequestStream
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.tests.policies.requests.book.gateway_bench import emitted, scored


def stream() -> tuple[RequestStream, list]:
    ends: list = []
    return RequestStream("r", lambda request, stop: ends.append((request, stop)), Offers()), ends


async def test_what_a_slow_reader_has_not_taken_is_joined():
    s, _ = stream()
    first = emitted("r", 1, 5, [1], [TokenLogprob(-1.0, [])])
    s.put(first)
    s.put(emitted("r", 1, 6, [2, 3], [TokenLogprob(-2.0, []), TokenLogprob(-3.0, [])]))
    s.put(emitted("r", 2, 8, [4], [TokenLogprob(-4.0, [])], "stop"))
    (news,) = [one async for one in s]
    assert (news.position, news.tokens, news.finish) == (5, [1, 2, 3, 4], "stop")
    assert [entry.logprob for entry in news.logprobs] == [-1.0, -2.0, -3.0, -4.0]
    assert first.tokens == [1], "the report that it came in may be sent again"


async def test_the_scores_of_the_prompt_come_before_the_tokens():
    s, _ = stream()
    scores = scored("r", 1, 1, [TokenLogprob(-1.0, [])])
    s.put(scores)
    s.put(emitted("r", 1, 5, [1], finish="length"))
    assert [one async for one in s] == [scores, emitted("r", 1, 5, [1], finish="length")]


async def test_a_waiting_reader_wakes_for_all_news():
    s, _ = stream()
    reader = asyncio.create_task(anext(s))
    await asyncio.sleep(0)
    s.put(emitted("r", 1, 5, [1]))
    assert await reader == emitted("r", 1, 5, [1])
    reader = asyncio.create_task(anext(s, None))
    await asyncio.sleep(0)
    s.close()
    assert await reader is None


async def test_an_error_comes_after_what_was_delivered():
    s, _ = stream()
    s.put(emitted("r", 1, 5, [1]))
    s.fail(RequestRefused(Refusal.UNAVAILABLE, "no worker"))
    assert s.refused() is None, "something was delivered: it is no refusal"
    assert await anext(s) == emitted("r", 1, 5, [1])
    with pytest.raises(RequestRefused, match="no worker"):
        await anext(s)
    assert await anext(s, None) is None


async def test_a_refusal_is_taken_once():
    s, _ = stream()
    s.fail(RequestRefused(Refusal.UNKNOWN_MODEL, "no model"))
    error = s.refused()
    assert error is not None
    assert error.why is Refusal.UNKNOWN_MODEL
    assert await anext(s, None) is None


async def test_stop_and_cancel_reach_the_gateway_and_close_drops_the_rest():
    s, ends = stream()
    s.put(emitted("r", 1, 5, [1]))
    s.stop()
    s.cancel()
    assert ends == [("r", True), ("r", False)]
    s.close()
    assert [one async for one in s] == []


async def listened(s: RequestStream, listener: Listener) -> asyncio.Task:
    """Set a listener; return a reader that waits."""
    s.listen(listener)
    reader = asyncio.create_task(anext(s, None))
    await asyncio.sleep(0)
    return reader


async def test_a_listener_takes_tokens_while_the_reader_waits_and_the_last_ones_wake_it():
    s, _ = stream()
    heard: list[list[int]] = []
    reader = await listened(s, lambda news: heard.append(news.tokens) or True)
    s.put(emitted("r", 1, 5, [1]))
    s.put(emitted("r", 1, 6, [2]))
    assert heard == [], "not in the turn of the report"
    await asyncio.sleep(0)
    s.put(emitted("r", 1, 7, [3]))
    await asyncio.sleep(0)
    assert (heard, reader.done()) == ([[1, 2], [3]], False)
    s.put(emitted("r", 1, 8, [4]))
    s.put(emitted("r", 1, 9, [5], finish="length"))
    assert (await reader).tokens == [4, 5]
    assert heard == [[1, 2], [3]]


async def test_what_a_listener_refuses_the_reader_gets():
    s, _ = stream()
    reader = await listened(s, lambda news: False)
    s.put(emitted("r", 1, 5, [1]))
    assert await reader == emitted("r", 1, 5, [1])
    s.put(emitted("r", 1, 6, [2]))
    s.put(emitted("r", 1, 7, [3]))
    await asyncio.sleep(0)
    assert (await anext(s)).tokens == [2, 3], "nobody waited: nothing is offered"


async def test_scores_wake_the_reader_though_a_listener_waits():
    s, _ = stream()
    reader = await listened(s, lambda news: True)
    s.put(scored("r", 1, 1, [TokenLogprob(-1.0, [])]))
    assert await reader == scored("r", 1, 1, [TokenLogprob(-1.0, [])])


async def test_a_listener_is_not_asked_for_a_reader_that_was_cancelled():
    s, _ = stream()
    heard: list[TokensEmitted] = []
    reader = await listened(s, lambda news: heard.append(news) or True)
    s.put(emitted("r", 1, 5, [1]))
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert heard == []


async def test_what_a_listener_raises_the_reader_raises_and_other_streams_go_on():
    offers, heard = Offers(), []
    broken, whole = (RequestStream(name, lambda request, stop: None, offers) for name in "ab")
    readers = [await listened(broken, lambda news: 1 / 0), await listened(whole, lambda news: heard.append(news) or True)]
    broken.put(emitted("a", 1, 5, [1]))
    whole.put(emitted("b", 1, 5, [2]))
    with pytest.raises(ZeroDivisionError):
        await readers[0]
    assert [news.tokens for news in heard] == [[2]]
    whole.close()
    assert await readers[1] is None

"""The page in a headless Chromium: chat, charts that move, blocks, and the log of a kill and a recovery.

``make looks`` runs this and keeps the pictures in docs/; where there is no browser it is skipped, and says so.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector
from safetensors.torch import load_file, save_file

from blockwright.api.demo.family import present
from blockwright.tests.claims import claim
from blockwright.tests.system.browser import Browser, found
from blockwright.tests.system.conftest import PACE
from blockwright.tests.system.server import Server

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(found() is None, reason="no Chromium on this machine; install the package chromium"),
]
DEMO = Path(__file__).parents[2] / "examples" / "demo-checkpoint"
PICTURES = os.environ.get("BLOCKWRIGHT_PICTURES")  # folder to keep them in
SEND = "document.getElementById('text').value = {text!r}; document.getElementById('ask').requestSubmit(); true"


HOSTILE = [  # what an answer might say to run, load or change something; none of it may
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg/onload=window.hacked=1><style>*{display:none}</style>",
    "[a](javascript:window.hacked=1) [b](jAvAsCrIpT:window.hacked=1) [c](&#106;avascript:window.hacked=1)",
    "[a](data:text/html,<script>window.hacked=1</script>) [b](vbscript:hacked) [c](//evil.example/x)",
    "<javascript:window.hacked=1> javascript:window.hacked=1",
    "[a]: javascript:window.hacked=1\n\n[a]",
    "![seen](https://evil.example/pixel.png) ![a](x' onerror='window.hacked=1)",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe><object data=x></object><embed src=x>",
    "<form action=https://evil.example><input name=x autofocus onfocus='window.hacked=1'><button>go</button></form>",
    "<base href='https://evil.example/'><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<a id=ask name=send href='https://a.example' style='position:fixed;inset:0' onclick='window.hacked=1'>x</a>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror=window.hacked=1&gt;'>",
    '[x](https://a.example "\\" onmouseover=\\"window.hacked=1")',
    "```html' onclick='window.hacked=1\n<script>window.hacked = 1</script>\n```",
    "- [ ] <b onmouseover=window.hacked=1>x</b>\n" + "> " * 300 + "deep",
]
FORMATTED = "# Title\n\n**bold** and `code`\n\n1. one\n2. two\n\n| a | b |\n| - | -: |\n| 1 | 2 |\n\n```py\nx < 1\n```\n[there](https://a.example)"
SHOWN = """(async () => {
  const { markdown } = await import('/page/markdown.js');
  const place = document.body.appendChild(document.createElement('div'));
  place.append(...TEXTS.map(markdown));
  await new Promise((done) => setTimeout(done, 50));
  const all = [...place.querySelectorAll('*')];
  const found = {
    tags: [...new Set(all.map((one) => one.localName))].sort(),
    attributes: [...new Set(all.flatMap((one) => one.getAttributeNames()))].sort(),
    links: all.map((one) => one.getAttribute('href')).filter((href) => href !== null),
    text: place.textContent, hacked: window.hacked ?? null };
  place.remove();
  return found; })()"""


def tuned(folder: Path) -> Path:
    """The demo checkpoint with other weights in its upper layers, and no chat template: a base model."""
    shutil.copytree(DEMO, folder)
    answer = json.loads((folder / "tokenizer_config.json").read_text())
    del answer["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(answer))
    tensors = load_file(folder / "model.safetensors")
    layers = sorted({int(found[1]) for name in tensors if (found := re.search(r"layers\.(\d+)\.", name))})
    upper = [name for name in tensors if any(f"layers.{layer}." in name for layer in layers[len(layers) // 2 :])]
    save_file({n: t + 0.001 if n in upper else t for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


async def flood(url: str, enough: asyncio.Event, models: Sequence[str] = ("demo-checkpoint", "tuned")) -> None:
    """Send requests of each model in turn, longer and longer, until there were enough."""

    async def one(client: ClientSession, number: int) -> None:
        ask = {"model": models[number % len(models)], "prompt": f"copy: {number}"}
        for round in itertools.count(1):
            asked = {**ask, "max_tokens": min(200, 20 * round), "ignore_eos": True}
            async with client.post("/v1/completions", json=asked) as answer:
                assert answer.status == 200
                await answer.read()
            if enough.is_set():
                break

    async with ClientSession(url, connector=TCPConnector(limit=0)) as client:
        await asyncio.gather(*[one(client, number) for number in range(12)])


COLUMNS = """[...document.querySelectorAll('#chains .chainbar')].map((bar) => [...bar.querySelectorAll('.block')]
  .map((block) => [block.getBoundingClientRect().left - bar.getBoundingClientRect().left, block.style.background]))"""
TOPS = """import('/page/charts.js').then(({ roundTop }) => [[1, 0], [12, 0], [626, 0], [0.239, 0], [2, 0], [5.01, 0],
  [1000, 0], [10.3 * 2 ** 20, 1], [700 * 2 ** 20, 1], [3, 1]].map(([value, binary]) => roundTop(value, binary)))"""

JOINED = """import('/page/workers.js').then(({ drawWorkers }) => {
  const memory = { budget: 1, parameters: 0, kv: 0, cached: 0, free: 1 }, queue = { running: 0, waiting: 0 };
  const joined = { pid: 7, host: 'b', joined: true, labels: { rack: '<b>1' } };
  drawWorkers({ workers: [{ id: 'far', state: 'ready', memory, queue, blocks: [], ...joined }], cards: [] }, {});
  return document.querySelector('[data-worker="far"] summary').textContent; })"""
PREDICTORS = """import('/page/workers.js').then(({ drawWorkers }) => {
  const far = { id: 'px', host: 'b', joined: true, labels: {}, state: 'ready', predicts: ['w0', 'far'] };
  drawWorkers({ workers: [], cards: [], predictors: [far] }, {});
  return document.querySelector('[data-predictor="px"]').textContent; })"""

CARD = """import('/page/workers.js').then(({ drawWorkers }) => {
  const memory = { total: 80 * 2 ** 30, free: 30 * 2 ** 30 };
  const busy = { id: 'cuda:1', name: 'H100', memory, use: 0.83, power: 654.3, throttled: ['heat'] };
  drawWorkers({ workers: [], cards: [busy] }, {});
  const shown = document.querySelector('[data-card="cuda:1"]');
  return [shown.textContent, shown.querySelector('.bar i').style.width]; })"""

GAP = """import('/page/charts.js').then(({ Chart }) => {
  const canvas = document.body.appendChild(document.createElement('canvas'));
  const chart = new Chart(canvas, String, { stacked: true });
  chart.show([0, 1, 3, 8], { a: [1, 1, 1, 1] }, { from: 0, to: 10, step: 1 });
  const seen = [2.5, 5].map((at) => {
    const x = Math.round(chart.x(at) * devicePixelRatio), y = Math.round(canvas.height * 0.4);
    return canvas.getContext('2d').getImageData(x, y, 1, 1).data[3] > 0; });
  canvas.remove();
  return seen; })"""


async def shares(browser: Browser) -> None:
    """Shared parts of two models lie below one another in one color; a row has a name and one number, the rest on hover."""
    assert "shared by demo-checkpoint, tuned" in await browser.look("document.querySelector('#chains .block').title")
    outcome = await browser.look("document.querySelector('#chains .chain').title")
    assert "ready on w0, w1" in outcome.splitlines()
    shown = await browser.look("document.querySelector('#chains .chain').innerText")
    assert re.fullmatch(r"demo-checkpoint\s+×2\s+own\s+[\d.]+ MiB", shown), "a name and one number"
    saved = await browser.look("document.getElementById('saving').textContent")
    assert re.fullmatch(r"2 models in [\d.]+ MiB instead of [\d.]+ MiB \(\d+% saved\)", saved), saved
    first, second = await browser.look(COLUMNS)
    assert [place for place, _ in first] == pytest.approx([place for place, _ in second], abs=1)
    assert [one == other for (_, one), (_, other) in zip(first, second, strict=True)] == [True, False, True]
    said = "document.getElementById('tenants-said').innerText"
    assert await browser.look(said) == "without API keys each model is one"
    assert await browser.look("[...document.querySelectorAll('#tenant-rows tr')].map((row) => row.dataset.tenant)") == [
        "demo-checkpoint",
        "tuned",
    ]
    assert await browser.look("document.querySelector('#messages').getBoundingClientRect().height") < 200
    blocks = "document.querySelector('.worker details')"
    assert not await browser.look(f"{blocks}.open")
    await browser.look(f"{blocks}.querySelector('summary').click(); {blocks}.dataset.old = 1; true")
    await browser.wait(f"!{blocks}.dataset.old && {blocks}.open")  # also when the worker is drawn anew


async def tells_of_a_recovery(browser: Browser) -> None:
    """Under load, of a worker that is killed: in the events, and above them in one line. Once more where its requests had
    just ended."""
    for deaths in range(1, 4):
        name = await kill_the_busiest(browser, deaths)
        line = "document.getElementById('recovery').textContent"
        outcome = await browser.wait(
            f"{line}.startsWith('Last recovery: worker {name} ') && {line}.includes('serves again') && {line}"
        )
        if " moved to " in outcome:
            break
    moved = r"\d+ requests? moved to w\d.*, the last after [\d.]+ s"
    assert re.fullmatch(rf"Last recovery: worker {name} died: .* at .*; {moved}; {name} serves again .*", outcome), outcome


async def kill_the_busiest(browser: Browser, deaths: int) -> str:
    """Its name, when it serves again. ``deaths``: so many with this one."""
    workers = await browser.look("fetch('admin/cluster').then(r => r.json()).then(v => v.workers)")
    busiest = max(workers, key=lambda worker: worker["queue"]["running"])
    name: str = busiest["id"]
    os.kill(busiest["pid"], signal.SIGKILL)
    message = "[...document.querySelectorAll('#events li')].map((line) => line.textContent)"
    await browser.wait(f"{message}.filter((text) => text.includes(' died: ')).length === {deaths}")
    again = f"text.includes('worker {name} serves again')"
    await browser.wait(
        f"(() => {{ const all = {message}; return all.findIndex((text) => {again}) < all.findIndex((text) => "
        f"text.includes(' died: ')) && all.some((text) => {again}) }})()"
    )
    await browser.wait("document.querySelectorAll('.worker[data-state=ready]').length === 2")
    return name


async def tells_of_requests(browser: Browser) -> None:
    await browser.wait("document.querySelectorAll('#list tr[data-state=finished]').length > 0")
    await browser.look("document.querySelector('#list button').click(); true")
    await browser.wait("document.getElementById('story').textContent.includes('first_token')")


async def shows_markdown(browser: Browser) -> None:
    """Formatting is shown, and nothing else of an answer has any effect."""
    formatted = await browser.look(SHOWN.replace("TEXTS", json.dumps([FORMATTED])))
    assert {"h1", "strong", "code", "ol", "li", "table", "td", "pre", "a"} <= set(formatted["tags"])
    assert formatted["links"] == ["https://a.example"]
    assert "x < 1" in formatted["text"]
    hostile = await browser.look(SHOWN.replace("TEXTS", json.dumps(HOSTILE)))
    assert set(hostile["tags"]) <= {"a", "p", "pre", "code", "ul", "li", "blockquote", "br"}, "raw HTML is text"
    assert set(hostile["attributes"]) <= {"href", "title", "target", "rel"}
    assert all(link.startswith("https://") for link in hostile["links"]), hostile["links"]
    assert "<script>window.hacked = 1</script>" in hostile["text"]
    assert hostile["hacked"] is None
    assert browser.errors == [], "not even tried: the policy had nothing to stop"


HELD = """const plain = fetch, held = new Promise((go) => { window.release = go; });
  const waiting = { state: 'waiting', place: 3 };
  window.fetch = (where, how) => where.startsWith('v1/requests/page-') ? Promise.resolve(Response.json(waiting))
    : how?.method === 'POST' ? held.then(() => plain(where, how)) : plain(where, how); true"""


async def says_where_it_waits(browser: Browser) -> None:
    """Of a chat that has no token yet; then what it took, as ever."""
    note = "document.getElementById('note').textContent"
    await browser.look(f"document.getElementById('temperature').value = ''; {HELD}")
    await browser.look(SEND.format(text="copy: abc"))
    assert re.fullmatch(r"waiting, position 3; \d+\.\d s so far", await browser.wait(f"{note}.includes('so far') && {note}"))
    await browser.look("window.release(); true")
    await browser.wait(f"{note}.includes(' in ')")
    await browser.look("document.getElementById('reset').click(); true")


EMPTY = """{ const plain = fetch, end = 'data: {"choices": [], "usage": {"completion_tokens": 1}}\\n\\ndata: [DONE]\\n\\n';
  window.fetch = (where, how) => how?.method === 'POST' ? Promise.resolve(new Response(end)) : plain(where, how);
  window.restore = () => { window.fetch = plain; }; } true"""


async def says_what_no_text_took(browser: Browser) -> None:
    """An answer without text has no first token to tell of."""
    await browser.look(EMPTY)
    await browser.look(SEND.format(text="copy:"))
    note = "document.getElementById('note').textContent"
    assert re.fullmatch(r"1 token in [\d.]+ m?s", await browser.wait(f"{note}.includes(' in ') && {note}"))
    await browser.look("window.restore(); document.getElementById('reset').click(); true")


async def keeps_its_past(browser: Browser, url: str) -> None:
    """A reload has the minutes before it; the pointer shows what was then; other spans are there."""
    rows = "fetch('metrics/history').then(r => r.json()).then(v => v.rows.length)"
    before = await browser.look(rows)
    assert before > 3
    await browser.open(f"{url}/")
    await browser.wait("document.querySelector('#tokens').ariaLabel?.startsWith('tokens/s ')")
    pointing = "(() => { const c = document.getElementById('requests'); const { width } = c.getBoundingClientRect(); "
    pointing += "for (let x = width - 5; x > 0; x -= 4) { c.dispatchEvent(new PointerEvent('pointermove', "
    pointing += "{ clientX: c.getBoundingClientRect().left + x, clientY: c.getBoundingClientRect().top + 40 })); "
    pointing += "const t = c.nextElementSibling.textContent; if (/running [1-9]/.test(t)) return t } return '' })()"
    outcome = await browser.wait(pointing)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\nrunning [\d.]+\nwaiting [\d.]+", outcome), outcome
    hour = "document.getElementById('span').value = '3600'; "
    await browser.look(hour + "document.getElementById('span').dispatchEvent(new Event('change')); true")
    await browser.wait("document.querySelector('#memory').ariaLabel.includes('KV in use')")


async def continues_text(browser: Browser) -> None:
    """A base model has no chat template: the page continues the text with it, and says so."""
    await browser.wait("document.getElementById('model').options.length === 2")
    anew = "document.getElementById('reset').click(); document.getElementById('temperature').value = ''; "
    await browser.look(anew + "document.getElementById('model').value = 'tuned'; true")
    await browser.look(SEND.format(text="copy: abc ="))
    await browser.wait("document.getElementById('note').textContent.endsWith('; a base model: it continues your text')")
    assert await browser.look("document.querySelector('#messages .assistant .said').textContent")
    (message,) = browser.errors
    assert "400" in message, "of /v1/chat/completions, which says that there is no template"
    browser.errors.clear()


async def keeps_what_was_said(browser: Browser, url: str) -> None:
    """A stopped answer, an error and a reload lose nothing."""
    endless = "const plain = fetch; window.fetch = (where, how) => plain(where, how?.body ? "
    endless += "{...how, body: how.body.replace('{', '{\"ignore_eos\":true,')} : how); true"
    await browser.look(endless)
    await browser.look(SEND.format(text="copy: ab"))
    await browser.wait("document.querySelectorAll('#messages .said')[3].textContent.length > 20")
    await browser.look("document.getElementById('stop').click(); true")
    await browser.wait("document.getElementById('note').textContent === 'stopped'")
    kept = await browser.look("document.querySelectorAll('#messages .said')[3].textContent")
    await browser.look("document.getElementById('temperature').value = 9; true")
    await browser.look(SEND.format(text="more"))
    await browser.wait("document.querySelectorAll('#messages .error').length === 1")
    assert "temperature is 9" in await browser.look("document.querySelector('#messages .error').textContent")
    browser.errors.clear()  # the browser tells of the 400
    await browser.open(f"{url}/")
    await browser.wait("document.querySelectorAll('#messages li').length === 5")
    assert await browser.look("document.querySelectorAll('#messages .said')[3].textContent") == kept
    assert await browser.look("document.getElementById('temperature').value") == "9"
    await browser.wait("document.getElementById('model').options.length === 2")


PAINTED = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
  () => done([...document.querySelectorAll('canvas')].map((c) => c.toDataURL())))))"""


LONG = "acme-corporation-customer-support-german-v2"
REACHED = """(() => { const model = document.getElementById('model'), list = document.getElementById('list');
  model.append(new Option(LONG)); const before = model.value; model.value = LONG;
  list.querySelectorAll('.model').forEach((cell) => (cell.textContent = LONG));
  list.querySelectorAll('.state').forEach((cell) => (cell.textContent = 'waiting, position 12'));
  const wide = document.documentElement.scrollWidth, edge = list.closest('.scroll').getBoundingClientRect().right;
  const buttons = [...list.querySelectorAll('button')].filter((one) => one.getBoundingClientRect().right > edge + 1).length;
  model.value = before; model.lastChild.remove();
  return [wide, buttons]; })()""".replace("LONG", json.dumps(LONG))


async def fits(browser: Browser) -> None:
    """Three widths, each dark and light; also with a long model id, whose requests can be cancelled without scrolling."""
    for width, dark in itertools.product((1280, 800, 390), (True, False)):
        await browser.shape(width, dark=dark)
        painted = await browser.look(PAINTED)
        wide = await browser.look("document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} wide on a screen of {width}"
        wide, beyond = await browser.look(REACHED)
        assert (wide <= width, beyond) == (True, 0), f"{wide} wide, {beyond} buttons beyond the edge, on a screen of {width}"
        ground = await browser.look("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 21, 26)") == dark
        await browser.shape(width, dark=not dark)
        pairs = zip(painted, await browser.look(PAINTED), strict=True)
        assert all(one != other for one, other in pairs), "charts have the colors of the shade at once"
        await browser.shape(width, dark=dark)
    await browser.look("document.getElementById('reset').click(); true")
    assert await browser.look("document.querySelectorAll('#messages li').length") == 0


MANY = """import('/page/map.js').then(({ drawChains }) => {
  const names = [...Array(24).keys()].map((n) => n ? `lora-${n}` : 'base'), applications = {};
  for (const name of names) {
    const delta = name === 'base' ? 0 : 4096, own = name === 'lora-23';
    const segments = [{ of: names, bytes: 3e6, delta }, { of: own ? [name] : names.slice(0, 23), bytes: 2e6, delta }];
    applications[name] = { base: delta ? 'base' : '', state: 'ready', bytes: { own: delta, shared: 5e6 }, segments,
      kv: { bytes: 0, shared: 0 }, requests: { running: 0, waiting: 0 } };
  }
  drawChains({ applications, routes: [], parameter_bytes: 7e6, saved_bytes: 1e8 });
  const box = (one) => one.getBoundingClientRect(), all = (what) => [...document.querySelectorAll(what)];
  const columns = new Set(all('#chains .chainbar').map((bar) => Math.round(box(bar).left)));
  const parts = all('#chains .chainbar').map((bar) => [...bar.querySelectorAll('.block')].map((block) =>
    [Math.round(box(block).left - box(bar).left), Math.round(box(block).width), block.style.background].join()));
  return { columns: columns.size, parts: new Set(parts.map((row) => row[0])).size,
    second: new Set(parts.map((row) => row[1])).size, height: box(document.getElementById('chains')).height,
    strips: all('#chains .delta').filter((strip) => box(strip).width > 0).every((strip) => box(strip).height <= 4) }; })"""


async def draws_many_models(browser: Browser) -> None:
    """Twenty-four models are two columns of short rows, or one on a phone; equal blocks have one place and one color."""
    for width, columns, limit in ((1280, 2, 360), (390, 1, 720)):
        await browser.shape(width, dark=False)
        found = await browser.look(MANY)
        assert found["height"] < limit, "a row is as high as its line"
        assert {**found, "height": 0} == {"columns": columns, "parts": 1, "second": 2, "height": 0, "strips": True}
        wide = await browser.look("document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} wide on a screen of {width}"
    await browser.shape(1280, dark=False)


@claim(
    "A web page shows models, shared blocks, workers, requests and events, and it has a chat",
    of="observability",
    headline=True,
)
async def test_the_page(serve: Callable[..., Server], tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"coefficients": {"base": PACE}}))
    predicted = {"dispatch": "ours", "profile": profile, "dispatch_timeout": 1, "overload": "on"}
    server = serve(DEMO, memory="64MiB", **predicted, **{"applications.tuned": tuned(tmp_path / "tuned")}).whole()
    async with Browser() as browser:
        await browser.open(server.url + "/")
        await browser.wait("document.getElementById('state').textContent === 'ready'")
        await browser.wait("document.getElementById('model').options.length === 2")

        await browser.look(SEND.format(text="reverse: abcd"))
        await browser.wait("document.getElementById('note').textContent.includes('tokens in')")
        said = "document.querySelector('#messages .assistant .said').textContent"
        assert await browser.look(said)
        await browser.wait("Number(document.querySelector('[data-of=memory]').textContent.split(' ')[0]) > 0")

        await browser.wait("document.getElementById('dropped').ariaLabel.startsWith('parameters ')")
        tops = [1, 20, 1000, 0.5, 2, 10, 1000, 20 << 20, 1 << 30, 5]
        assert await browser.look(TOPS) == pytest.approx(tops), "axes end at round numbers"
        assert await browser.look(GAP) == [True, False], "one missing row is no gap, several are"
        card = ["cuda:1H100, 83 % busy, 654 W, held down by heat50 GiB of 80 GiB", "62.5%"]
        assert await browser.look(CARD) == card, "until the next look at the cluster"
        assert await browser.look(PREDICTORS) == "pxreadypredicts w0, far on b, joined"
        assert await browser.look(JOINED) == "0 blocks; pid 7 on b, joined; rack=<b>1"

        await browser.wait("document.querySelectorAll('.worker[data-state=ready]').length === 2")
        await browser.wait("document.querySelectorAll('.worker .block').length >= 2")
        await shares(browser)

        enough = asyncio.Event()
        load = asyncio.create_task(flood(server.url, enough))
        await browser.wait("Number(document.querySelector('[data-of=running]').textContent) >= 4")
        await browser.wait("Number(document.querySelector('[data-of=rate]').textContent) >= 1")
        await browser.wait("/^parameters .* MiB, KV of .* [KM]iB/.test(document.getElementById('uses').ariaLabel)")
        await browser.wait("Number(document.querySelector('[data-of=forecasts]').textContent.split(' ')[0]) >= 8")
        drawn = "[...document.querySelectorAll('canvas')].every(c => c.getContext('2d').getImageData(0, 0, c.width, "
        drawn += "c.height).data.some(v => v))"
        await browser.wait(drawn)
        scale = "document.getElementById('forecast').ariaLabel"
        assert re.fullmatch(r"seconds predicted .* and actual .*, from \d+ ms to \d.* m?s", await browser.look(scale))
        await tells_of_a_recovery(browser)
        enough.set()
        await load

        await tells_of_requests(browser)
        await shows_markdown(browser)
        await keeps_what_was_said(browser, server.url)
        await says_where_it_waits(browser)
        await says_what_no_text_took(browser)
        await keeps_its_past(browser, server.url)
        await continues_text(browser)
        await fits(browser)
        await draws_many_models(browser)
        assert browser.errors == []
        assert all(url.startswith((server.url, "data:", "about:")) for url in browser.asked), browser.asked
    server.stop()


@pytest.mark.skipif(not PICTURES, reason="takes the pictures of the documentation; run make looks")
@pytest.mark.nightly
async def test_pictures(serve: Callable[..., Server]) -> None:
    """The nine models of the demo under load, and the death of a worker."""
    assert PICTURES is not None
    family = {f"applications.{name}": folder for name, folder in present(DEMO.parent / "demo-family").items()}
    nine = {"applications.pipelined": DEMO, "pipelines.pipelined": 2, **family}
    server = serve(DEMO, memory="16MiB", page_size=16, **nine).whole()
    async with Browser() as browser:
        await browser.open(server.url + "/")
        await browser.wait("document.getElementById('model').options.length === 9")
        await browser.look(SEND.format(text="reverse: abcd"))
        await browser.wait("document.getElementById('note').textContent.includes('tokens in')")
        enough = asyncio.Event()
        models = ["demo-checkpoint", "pipelined", *present(DEMO.parent / "demo-family")]
        load = asyncio.create_task(flood(server.url, enough, models))
        await asyncio.sleep(25)  # a chart with something in it
        await browser.picture(Path(PICTURES) / "page-live.png")
        await kill_the_busiest(browser, 1)
        await browser.wait("document.getElementById('recovery').textContent.includes('serves again')")
        await asyncio.sleep(3)
        await browser.picture(Path(PICTURES) / "page-recovery.png")
        enough.set()
        await load
    server.stop()

"""A server over a fake gateway port that dies of SIGKILL at a chosen write of its store: ``mortal.py FOLDER STEP``.

With STEP 1 it dies at each write. With 2 it dies before the end of the odd transactions and after that of the even ones.

Each case is two lives, each a process forked from this one: the first sends a file and has it answered until it dies, the
second does what is left. Prints a line for each case. What each life computes goes to a file as it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from blockwright.actors.gateway.port import Credit
from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.batches import store as store_module
from blockwright.api.batches.store import BatchStore
from blockwright.tests.api.batches.batch_rig import BatchRig, line
from blockwright.tests.api.fake_port import MAX_LENGTH, FakePort, make_folder, one_by_one

LINES = [line(str(i), prompt=[10 + i, 7]) for i in range(4)] + [b"torn\n", line("nobody", model="none")]


def die_at(number: int, when: str) -> None:
    """At the write of this number, from 1, before or after its transaction ends."""
    transaction, count = store_module.transaction, 0

    @contextlib.contextmanager
    def mortal(connection: Any) -> Iterator[None]:
        nonlocal count
        with transaction(connection):
            yield
            count += 1
            if (count, when) == (number, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
        if (count, when) == (number, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    store_module.transaction = mortal  # type: ignore[assignment]


async def live(model: Path, folder: Path, computed: Path) -> None:
    """Send the file, unless a batch is there already, and have it answered to the end."""

    def script(generation: Any) -> Any:
        with computed.open("a") as file:
            file.write(f"{generation.prompt[0] - 10}\n")
        return one_by_one([9, 8])

    port = FakePort(model, script)
    port.credit = [Credit(worker="w0", rows=2, positions=2 * MAX_LENGTH, room=2 * MAX_LENGTH)]
    settings = Settings(applications={"tiny": str(model)}, batch_dir=str(folder))
    async with TestClient(TestServer(make_app(port, settings))) as client:
        rig = BatchRig(client)
        _, page = await rig.ask("GET", "/v1/batches")
        id = page["data"][0]["id"] if page["data"] else await rig.create(LINES)
        await rig.start()
        batch = await rig.ended(id)
        assert batch["status"] == "completed", batch
        assert batch["request_counts"] == {"total": 6, "completed": 4, "failed": 2}, batch
        assert sorted(await rig.lines(batch["output_file_id"])) == ["0", "1", "2", "3"]
        assert len(await rig.lines(batch["error_file_id"])) == 2
        await rig.stop()


def life(work: Callable[[], None]) -> int:
    """In a process of its own; its exit status, or the signal that ended it, negative."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def stored(folder: Path) -> set[int]:
    """Lines that have a result, or all of them where the batch is over."""
    store = BatchStore(folder)
    batches, _ = store.list_batches("", after="", limit=9)
    found = {line for batch in batches for line in store.answered(batch.id)}
    over = any(batch.at.get("completed") for batch in batches)
    store.close()
    return set(range(6)) if over else found


def case(model: Path, root: Path, number: int, when: str) -> bool:
    """Whether there was a write of that number."""
    shutil.rmtree(root / "batches", ignore_errors=True)
    folder, computed = root / "batches", root / "computed"
    computed.write_text("")

    def first() -> None:
        die_at(number, when)
        asyncio.run(live(model, folder, computed))

    status = life(first)
    before = stored(folder)
    computed.write_text("")
    if status == 0:
        return False
    assert status == -signal.SIGKILL, status
    assert life(lambda: asyncio.run(live(model, folder, computed))) == 0
    again = {int(line) for line in computed.read_text().split()}
    assert not again & before, f"computed again: {again & before}"
    assert again | before >= {0, 1, 2, 3}
    known = {row["id"] for row in BatchStore(folder)._database.execute("SELECT id FROM files")}
    assert {path.name for path in (folder / "files").iterdir()} == known, "what a death left is swept"
    print(json.dumps({"write": number, "when": when, "stored": sorted(before), "again": sorted(again)}), flush=True)
    return True


def main(root: Path, step: int) -> None:
    model = make_folder(root / "model")
    for place, when in enumerate(("before", "after"), 1):
        number = min(place, step)
        while case(model, root, number, when):
            number += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

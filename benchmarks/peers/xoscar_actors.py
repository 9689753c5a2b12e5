"""xoscar's side of ``actors.py``, run in an environment of its own: prints a JSON line for each case."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import numpy as np
import xoscar as xo
from actors_timing import CALLERS, LARGE_CALLS, SIZES, SMALL_CALLS, WARM, bulk, percentiles, tell, timed, together


class Echo(xo.Actor):
    async def echo(self, data: bytes) -> bytes:
        return data

    async def touch(self, array: np.ndarray) -> int:
        return int(array[::4096].sum(dtype=np.int64))

    async def items(self, count: int, data: bytes) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield data


async def main(part: float) -> None:
    pool = await xo.create_actor_pool("127.0.0.1", n_process=1)
    address, data = pool.external_address, bytes(100)
    places = {"inproc": xo.allocate_strategy.ProcessIndex(0), "ipc": xo.allocate_strategy.ProcessIndex(1)}
    refs = {
        name: await xo.create_actor(Echo, address=address, uid=name, allocate_strategy=place)
        for name, place in places.items()
    }
    count = int(SMALL_CALLS * part)
    for name, ref in refs.items():
        tell(f"call/{name}/100B", percentiles(await timed(lambda ref=ref: ref.echo(data), count, WARM)))
    ref = refs["ipc"]
    for name, size in SIZES.items():
        array = np.ones(size, np.uint8)
        times = await timed(lambda array=array: ref.touch(array), max(3, int(LARGE_CALLS[name] * part)), 2)
        tell(f"call/ipc/{name}", bulk(times, size))
    for callers, total in CALLERS.items():
        tell(f"calls/{callers}callers/ipc", await together(lambda: ref.echo(data), callers, int(total * part)))
    await pool.stop()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))

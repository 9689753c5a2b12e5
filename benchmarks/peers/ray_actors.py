"""Ray's side of ``actors.py``, run in an environment of its own: prints a JSON line for each case."""

from __future__ import annotations

import sys
import time

import numpy as np
import ray
from actors_timing import CALLERS, LARGE_CALLS, SIZES, SMALL_CALLS, WARM, bulk, percentiles, tell, timed_blocking


@ray.remote(num_cpus=0)
class Echo:
    def echo(self, data: bytes) -> bytes:
        return data

    def touch(self, array: np.ndarray) -> int:
        return int(array[::4096].sum(dtype=np.int64))


def main(part: float) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    actor, data = Echo.remote(), bytes(100)
    call = lambda: ray.get(actor.echo.remote(data))  # noqa: E731
    tell("call/ipc/100B", percentiles(timed_blocking(call, int(SMALL_CALLS * part) // 3, WARM)))
    for name, size in SIZES.items():
        array = np.ones(size, np.uint8)
        times = timed_blocking(
            lambda array=array: ray.get(actor.touch.remote(array)), max(3, int(LARGE_CALLS[name] * part) // 3), 2
        )
        tell(f"call/ipc/{name}", bulk(times, size))
    for callers, total in CALLERS.items():
        total = int(total * part) // 5
        waiting = [actor.echo.remote(data) for _ in range(callers)]
        began = time.perf_counter()
        for _ in range(total):
            ready, waiting = ray.wait(waiting, num_returns=1)
            ray.get(ready)
            waiting.append(actor.echo.remote(data))
        tell(f"calls/{callers}callers/ipc", {"per_s": total / (time.perf_counter() - began)})
        ray.get(waiting)
    ray.shutdown()


if __name__ == "__main__":
    main(float(sys.argv[1]))

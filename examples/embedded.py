"""A model inside a program, in ten lines: python examples/embedded.py [CHECKPOINT]"""

import asyncio
import sys

import blockwright

MODEL = sys.argv[1] if len(sys.argv) > 1 else "examples/demo-checkpoint"


async def main() -> None:
    async with blockwright.Cluster(MODEL, workers=2) as c:
        print((await c.generate("reverse: blocks =", max_tokens=32, temperature=0)).text)
        async for piece in c.chat([{"role": "user", "content": "sort: 3021 ="}], max_tokens=32, temperature=0):
            print(piece.text, end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main())

"""The owner of a port that is taken: another server of ours, and its models, as far as it reveals them without a key."""

from __future__ import annotations

import aiohttp

PATIENCE = 1.0  # seconds


async def served_there(host: str, port: int) -> list[str]:
    """Return the model ids of a blockwright server that listens there.

    The list is empty if it is another server, needs a key, or is silent.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http,
            http.get(url, allow_redirects=False) as answer,
        ):
            body = await answer.json()
        return [str(model["id"]) for model in body["data"] if model["owned_by"] == "blockwright"]
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):  # the answer of any other server
        return []

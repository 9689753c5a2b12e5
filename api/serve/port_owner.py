"""Who holds the port that a server was to have: another of ours, and what it serves, as far as it tells without a key."""

from __future__ import annotations

import aiohttp

PATIENCE = 1.0  # seconds


async def served_there(host: str, port: int) -> list[str]:
    """Ids of the models of a blockwright that answers there. None where it is another, wants a key, or is silent."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http,
            http.get(url, allow_redirects=False) as answer,
        ):
            body = await answer.json()
        return [str(model["id"]) for model in body["data"] if model["owned_by"] == "blockwright"]
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):  # whatever else answers there
        return []

"""What every handler of the HTTP front is given: the gateway port, the models, the keys, the counters.

One ``Front`` for each application, under ``FRONT``; the other keys name what a request carries through its handlers. Makes
request ids.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from aiohttp import web

from blockwright.actors.config import Settings
from blockwright.actors.gateway.port import GatewayPort
from blockwright.api.auth import Keys
from blockwright.api.catalog import Catalog
from blockwright.api.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    port: GatewayPort
    settings: Settings
    catalog: Catalog
    keys: Keys
    metrics: Metrics
    keep_alive: float  # seconds of silence before a comment
    max_body: int  # bytes

    def new_id(self, prefix: str) -> str:
        """Names its gateway, so that any gateway can tell where to ask about it."""
        return f"{prefix}-{self.port.name}-{secrets.token_hex(12)}"


FRONT = web.AppKey("front", Front)
TENANT = web.RequestKey("tenant", str)  # who asks
CALL_ID = web.RequestKey("call_id", str)  # the id of the answer, once it has one
IGNORED = web.RequestKey("ignored", tuple[str, ...])  # unknown fields of the body

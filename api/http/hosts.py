"""The host names that a server on loopback answers to, as a defense against DNS rebinding.

A web page can let its own name resolve to 127.0.0.1 after it is loaded. The browser then takes the server for the page's own
site and lets the page read everything. The Host header still has the page's name. An IP address cannot be such a name.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from ...actors.settings.network import NetworkSettings
from ..errors import ApiError

LOOPBACK = "localhost"


class Hosts:
    """The allowed host names.

    They are checked if ``allowed_hosts`` is set, or on loopback without keys. With keys, such a page lacks one. Beyond
    loopback, proxies and names of all kinds are usual.
    """

    def __init__(self, network: NetworkSettings) -> None:
        named = {one.strip().lower() for one in network.allowed_hosts.split(",") if one.strip()}
        keyless = not (network.api_keys or network.admin_keys)
        self._checked = "*" not in named and bool(named or (keyless and is_loopback(network.host)))
        self._names = named | {LOOPBACK, socket.gethostname().lower(), network.host.lower()}

    def check(self, host: str) -> None:
        """Raise a 421 for a name that is not allowed. ``host``: the value of the header."""
        if not self._checked or self._known(host):
            return
        raise ApiError(
            421,
            f"the host {host[:200]!r} is not allowed here; use localhost or an IP address, or add it to --set allowed_hosts",
        )

    def _known(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or name.endswith(f".{LOOPBACK}") or _address(name) is not None


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == LOOPBACK if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

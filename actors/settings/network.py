"""The settings of the HTTP front: addresses, keys, TLS, and the processes that answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ...policies.requests.account import is_offline_account
from .errors import SettingsError
from .part import AT_LEAST_ONE, COUNT, SECONDS, SECRET, AllowedTexts, AtMost, Bounds, SettingsPart, Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(SettingsPart):
    """The HTTP front, with its keys."""

    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0: any free one", Bounds("0 to 65535", 0, 65535)] = 8000
    api_keys: Annotated[Texts, "key: tenant; if this and admin_keys are empty, no key is needed", SECRET] = field(
        default_factory=dict
    )
    admin_keys: Annotated[Texts, "key: tenant; if there are any, only these may use /admin", SECRET] = field(
        default_factory=dict
    )
    tls_cert: Annotated[str, "certificate chain (PEM file); with tls_key the server speaks https only"] = ""
    tls_key: Annotated[str, "private key (PEM file) of tls_cert"] = ""
    cors_origins: Annotated[str, "origins whose web pages may send requests, separated by commas, or *; empty: none"] = ""
    allowed_hosts: Annotated[
        str,
        "host names accepted in requests, separated by commas, or *; empty: all, or on loopback without keys the local ones",
    ] = ""
    gateways: Annotated[int, "gateways, the processes that answer HTTP; all on the same port", AT_LEAST_ONE, AtMost(256)] = 1
    gateway_in_head: Annotated[
        str,
        "yes: the first gateway shares the head's process; no: each has its own; auto: no with more than 2 cores",
        AllowedTexts("auto", "yes", "no"),
    ] = "auto"
    max_connections: Annotated[
        int, "connections per gateway process, more are refused; 0: as many as open files (ulimit -n) allow", COUNT
    ] = 8192
    read_timeout: Annotated[
        float, "seconds a client has to send a request, plus one for each 16 KiB of its body", SECONDS
    ] = 60.0
    keep_alive: Annotated[
        float,
        "seconds of silence in a stream before a comment with the queue position or prefill progress, at least 0.001",
        Bounds("at least 0.001 seconds", 0.001),
    ] = 10.0
    directory: Annotated[str, "folder for the cluster's sockets; empty: a fresh private one"] = ""

    @property
    def tenants(self) -> set[str]:
        """Return the tenants that have a key."""
        return {*self.api_keys.values(), *self.admin_keys.values()}

    def check_together(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise SettingsError(f"{missing} is missing; https needs tls_cert and tls_key")
        for origin in filter(None, (part.strip() for part in self.cors_origins.split(","))):
            if origin != "*" and "://" not in origin:
                raise SettingsError(f"cors_origins names {origin!r}; give origins like https://example.org, or *")
        for tenant in sorted(filter(is_offline_account, self.tenants)):
            raise SettingsError(f"tenant {tenant!r} begins with ':', as the accounts of batches do; give it another name")

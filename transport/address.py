"""Node identities and socket addresses.

Owns the identity of a peer (name and incarnation), its text form ``name#incarnation``, the path of its socket in the
cluster's private directory, and the form of TCP endpoints. Knows nothing of actors. Opens a socket only to learn which
address of this machine another machine would see.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from .errors import AddressError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_IDENTITY = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})#([1-9][0-9]{0,17})")
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_KEYED = re.compile(r"([^?]*)\?key=([0-9a-f]{64})")
_LONGEST_PATH = 107  # sun_path holds 108 bytes with the final zero


class PeerId(NamedTuple):
    """One life of one node."""

    name: str
    incarnation: int  # from 1; a restarted node gets a higher one

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


def check_name(name: str) -> str:
    """Return the name unchanged, or raise AddressError.

    A name is 1 to 64 letters, digits, ``_ . -``; the first is a letter or digit.
    """
    if not _NAME.fullmatch(name):
        raise AddressError(f"node name {name!r} cannot be used; give 1 to 64 letters, digits, '_', '.', '-'")
    return name


def parse_identity(text: str) -> PeerId:
    """Parse ``"w0#3"`` into a PeerId. Raises AddressError for anything else."""
    match = _IDENTITY.fullmatch(text)
    if match is None:
        raise AddressError(f"{text[:80]!r} is not of the form name#incarnation")
    return PeerId(match[1], int(match[2]))


def private_directory(path: Path | None = None) -> Path:
    """Return a directory that only this user can enter; make it if missing, and a fresh one without ``path``.

    This directory alone governs access to a cluster's sockets, so a directory that others may enter is refused.
    """
    if path is None:
        return Path(tempfile.mkdtemp(prefix="blockwright-"))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid():
        raise AddressError(f"socket directory {path} belongs to user {found.st_uid}; give one of your own")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise AddressError(f"socket directory {path} is open to others; run: chmod 700 {path}")
    return path


def ipc_endpoint(directory: Path, peer: PeerId) -> str:
    """Return the endpoint that the ROUTER of ``peer`` is bound to.

    Incarnations never share a path, so a late message cannot reach a successor.
    """
    path = _socket_path(directory, peer)
    if len(str(path).encode()) > _LONGEST_PATH:
        raise AddressError(f"socket path {path} is longer than {_LONGEST_PATH} bytes; give a shorter directory")
    return f"ipc://{path}"


def _socket_path(directory: Path, peer: PeerId) -> Path:
    return directory / f"{peer.name}-{peer.incarnation}.sock"


def lasting_socket(path: Path, name: str) -> Path:
    """Return a path beside a socket file at which the newest life of that node is always reached.

    A link, replaced at once: a connection meets the earlier life or the later one, never nothing.
    """
    lasting = path.with_name(f"{name}.sock")
    fresh = path.with_name(f"{path.stem}.link.sock")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(path.name)
    fresh.replace(lasting)
    return lasting


def remove_lasting(path: Path, lasting: Path) -> None:
    """Remove a socket file, and the link that leads to it unless that leads to a later life by now. Never fails."""
    with contextlib.suppress(OSError):
        if lasting != path and os.readlink(lasting) == path.name:
            lasting.unlink()
    with contextlib.suppress(OSError):
        path.unlink()


def remove_socket(directory: Path, peer: PeerId) -> None:
    """Remove the socket file of a node whose process has ended, however it ended. Does nothing if there is none."""
    with contextlib.suppress(OSError):
        _socket_path(directory, peer).unlink()


def keyed(endpoint: str, key: str) -> str:
    """Return an endpoint that names the public key (hexadecimal) of the node which must answer there."""
    return f"{endpoint}?key={key}"


def split_key(endpoint: str) -> tuple[str, str]:
    """Split an endpoint into (the endpoint without its key, the key or "")."""
    match = _KEYED.fullmatch(endpoint)
    return (match[1], match[2]) if match is not None else (endpoint, "")


def tcp_parts(endpoint: str) -> tuple[str, int]:
    """Parse ``tcp://HOST:PORT`` into (host, port), an IPv6 address without its brackets. Raises AddressError."""
    match = _TCP.fullmatch(split_key(endpoint)[0])
    if match is None or int(match[2]) > 65535:
        raise AddressError(f"{endpoint[:200]!r} is not of the form tcp://HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Return True if the address stands for all addresses of this machine, and so tells other machines nothing."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def own_address(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches another. Sends nothing. Raises AddressError."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            found: str = probe.getsockname()[0]
    except OSError as error:
        raise AddressError(f"there is no way from here to {host}:{port}: {error}") from error
    return f"[{found}]" if ":" in found else found


def remove_directory(path: Path) -> None:
    """Delete the sockets, keys and notes in a cluster's directory, and the directory unless it holds something else."""
    for pattern in ("*.sock", "*.keys", "*.stall"):
        for found in path.glob(pattern):
            found.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()

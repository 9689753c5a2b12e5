"""A switch in user space between hosts that are network namespaces of this machine; a process of its own.

    python switch.py SEED NAME...

Makes a namespace for each name, host N with the address 10.77.0.N, and carries each Ethernet frame between them. Each way
(from, to) has a delay, a loss, a rate and may be cut; what is lost is drawn from the seed. Needs the rights of root over a
user namespace, and no ``tc``: a host's card is a TAP device, or one end of a veth pair whose other end is read as packets.

Reads a JSON object a line from standard input: {"from": NAME, "to": NAME, "way": {...}} changes a way, and is answered with
an empty line. Says {"pid": N, "namespaces": {NAME: fd}} first. Ends, and all namespaces with it, when its input ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000
NETWORK = "10.77.0."
MTU = 9000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR = 0x8914, 0x8916
_SIOCSIFNETMASK, _SIOCSIFMTU = 0x891C, 0x8922
_SIOCSIFHWADDR, _SIOCETHTOOL = 0x8924, 0x8946
_WORK_OF_A_CARD = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO
_UP_AND_RUNNING = 0x41
_ETH_P_ALL = 3
_FRAME = 1 << 16
_BROADCAST = 0x01  # in the first byte of an address
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Way:
    """The state of one direction between two hosts."""

    cut: bool = False
    delay: float = 0.0  # seconds
    loss: float = 0.0  # share of frames
    rate: float = 0.0  # bytes a second; 0: any
    free: float = 0.0  # when the last frame has passed at that rate


def interface(name: str, request: int, data: bytes) -> None:
    """Change a card of the current namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), data))


def address(last: int) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(f"{NETWORK}{last}"))


def configure(name: str, last: int) -> None:
    interface(name, _SIOCSIFHWADDR, struct.pack("H6B", 1, 2, 0, 0, 0, 0, last))
    interface(name, _SIOCSIFMTU, struct.pack("i", MTU))
    interface(name, _SIOCSIFADDR, address(last))
    interface(name, _SIOCSIFNETMASK, struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton("255.255.255.0")))
    interface(name, _SIOCSIFFLAGS, struct.pack("H", _UP_AND_RUNNING))


def open_tap() -> Port:
    """Return the far end of a new card ``net0``. Raises OSError where there is no /dev/net/tun for us."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"net0", _IFF_TAP | _IFF_NO_PI))
    return Port(device, lambda: os.read(device, _FRAME), lambda frame: os.write(device, frame))


def open_veth() -> Port:
    """Return the same for a veth pair, whose frames are whole and summed only once the card's own work is switched off."""
    subprocess.run(["ip", "link", "add", "net0", "type", "veth", "peer", "name", "far0"], check=True)
    for work in _WORK_OF_A_CARD:
        value = ctypes.create_string_buffer(struct.pack("II", work, 0))
        interface("net0", _SIOCETHTOOL, struct.pack("P", ctypes.addressof(value)))
    interface("far0", _SIOCSIFMTU, struct.pack("i", MTU))
    interface("far0", _SIOCSIFFLAGS, struct.pack("H", _UP_AND_RUNNING))
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_ALL))
    end.bind(("far0", _ETH_P_ALL))

    def read() -> bytes:
        while True:
            frame, sender = end.recvfrom(_FRAME)
            if sender[2] != socket.PACKET_OUTGOING:
                return frame

    return Port(end.fileno(), read, end.send)


@dataclass(slots=True)
class Port:
    """The switch's end of a host's card."""

    descriptor: int
    read: Callable[[], bytes]
    write: Callable[[bytes], int]


class Switch:
    """See the module."""

    def __init__(self, names: list[str], seed: int) -> None:
        self._names, self._random = names, random.Random(seed)
        self.namespaces: dict[str, int] = {}
        self._ports = [self._host(number, name) for number, name in enumerate(names, 1)]
        self._ways = {pair: Way() for pair in itertools.permutations(range(len(names)), 2)}
        self._due: list[tuple[float, int, int, bytes]] = []  # when, count, to, frame
        self._count = itertools.count()

    def _host(self, number: int, name: str) -> Port:
        if _libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace can be made")
        self.namespaces[name] = os.open("/proc/self/ns/net", os.O_RDONLY)
        interface("lo", _SIOCSIFFLAGS, struct.pack("H", _UP_AND_RUNNING))
        try:
            port = open_tap()
        except OSError:
            port = open_veth()
        configure("net0", number)
        return port

    def change(self, sender: str, to: str, way: dict[str, float]) -> None:
        one = self._ways[self._names.index(sender), self._names.index(to)]
        for name, value in way.items():
            setattr(one, name, value)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            for number, port in enumerate(self._ports):
                selector.register(port.descriptor, selectors.EVENT_READ, number)
            while True:
                wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
                for key, _ in selector.select(wait):
                    if key.data is not None:
                        self._take(key.data)
                    elif not self._obey():
                        return
                self._deliver()

    def _obey(self) -> bool:
        line = sys.stdin.readline()
        if line:
            order = json.loads(line)
            self.change(order["from"], order["to"], order["way"])
            print(time.monotonic(), flush=True)  # when it is so
        return bool(line)

    def _take(self, sender: int) -> None:
        """Carry what a host has sent, a few frames a turn."""
        for _ in range(32):
            try:
                frame = self._ports[sender].read()
            except BlockingIOError:
                return
            everybody = frame[0] & _BROADCAST
            for to in range(len(self._ports)) if everybody else [frame[5] - 1]:
                if to != sender and 0 <= to < len(self._ports):
                    self._carry(self._ways[sender, to], to, frame)

    def _carry(self, way: Way, to: int, frame: bytes) -> None:
        if way.cut or (way.loss and self._random.random() < way.loss):
            return
        now = time.monotonic()
        if way.rate:
            way.free = max(now, way.free) + len(frame) / way.rate
            now = way.free
        if way.delay or way.rate:
            heapq.heappush(self._due, (now + way.delay, next(self._count), to, frame))
        else:
            self._write(to, frame)

    def _deliver(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            self._write(*heapq.heappop(self._due)[2:])

    def _write(self, to: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):  # the card's queue is full: a frame is lost, as on any network
            self._ports[to].write(frame)


def main() -> None:
    sys.stdin = os.fdopen(0, "r", 1)  # unbuffered as far as a selector can see: one order at a time is sent
    switch = Switch(sys.argv[2:], int(sys.argv[1]))
    print(json.dumps({"pid": os.getpid(), "namespaces": switch.namespaces}), flush=True)
    switch.run()


if __name__ == "__main__":
    main()

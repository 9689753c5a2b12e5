"""The hosts of these tests: what passes between them, what does not, and when."""

from __future__ import annotations

import socket
import threading

import pytest

from blockwright.tests.hosts.network import Hosts
from blockwright.tests.waiting import until_now

LARGE = 3_000_000  # bytes, many times a card's queue


class Echo:
    """A connection from one host to another that says how many bytes have come with each line."""

    def __init__(self, hosts: Hosts, at: str, source: str) -> None:
        with hosts.at(at):
            self.listener = socket.create_server((hosts.address(at), 0))
        self._threads = [threading.Thread(target=self._serve)]
        with hosts.at(source):
            self.socket = socket.create_connection(self.listener.getsockname())
        self.answers: list[int] = []
        self._threads.append(threading.Thread(target=self._read))
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        end, _ = self.listener.accept()
        count = 0
        with end:
            while data := end.recv(1 << 16):
                count += len(data)
                if data.endswith(b"\n"):
                    end.sendall(b"%d\n" % count)

    def _read(self) -> None:
        with self.socket.makefile() as lines:
            while line := lines.readline():
                self.answers.append(int(line))

    def say(self, size: int = 2) -> None:
        """Send a line of so many bytes."""
        self.socket.sendall(b"x" * (size - 1) + b"\n")

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.socket.close()
        self.listener.close()


def test_bytes_pass_whole_also_with_delay_and_loss(hosts: Hosts) -> None:
    echo = Echo(hosts, "a", "b")
    hosts.shape(delay=0.002, loss=0.01)
    echo.say(LARGE)
    until_now(lambda: echo.answers and echo.answers[-1] == LARGE, "all came")
    hosts.shape()
    echo.close()


@pytest.mark.parametrize("way", ["both", "from", "to"])
def test_a_cut_stops_the_ways_that_it_names_and_only_these_hosts(hosts: Hosts, way: str) -> None:
    cut, other = Echo(hosts, "a", "b"), Echo(hosts, "c", "b")
    cut.say()
    until_now(lambda: cut.answers == [2], "it works")
    hosts.cut("b", "a", way=way)
    cut.say()
    other.say()
    until_now(lambda: other.answers == [2], "another host answers meanwhile")
    assert cut.answers == [2]
    hosts.heal("b", "a")
    until_now(lambda: cut.answers == [2, 4], "what was sent meanwhile comes")
    for one in (cut, other):
        one.close()


def test_loopback_of_each_host_is_its_own(hosts: Hosts) -> None:
    with hosts.at("b"):
        listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    with hosts.at("c"), pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with hosts.at("b"):
        socket.create_connection(address).close()
        listener.close()

"""``blockwright trace FILE``: what a node logged, drawn."""

from __future__ import annotations

from blockwright.api.commands.cli import main
from blockwright.runtime import Actor, Node, endpoint


class Echo(Actor):
    @endpoint
    async def echo(self, number: int) -> int:
        return number


async def test_a_log_is_drawn(tmp_path, capsys):
    node = Node("n", listen=False, message_log=tmp_path / "log")
    await node.start()
    ref = await node.spawn(Echo(), name="echo")
    for number in range(2):
        await ref.echo(number)
    await node.stop()
    assert main(["trace", str(tmp_path / "log")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("trace ")]) == 2
    assert len([line for line in lines if "n/echo" in line and line.endswith("value")]) == 2
    assert main(["trace", str(tmp_path / "log"), "--trace", "no such"]) == 0
    assert capsys.readouterr().out == "no messages of a trace no such\n"


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["trace", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_file_of_something_else(tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Title\n\ntext\n")
    assert main(["trace", str(tmp_path / "README.md")]) == 2
    assert (
        "README.md: none of the 2 lines is of a log of messages; give what Node(message_log=...) wrote"
        in capsys.readouterr().err
    )

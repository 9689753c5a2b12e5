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
    assert f"there is no file {tmp_path / 'none'}; name what Node(message_log=...) wrote" in capsys.readouterr().err
    assert main(["trace", str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be read (Is a directory); name the log of a node" in capsys.readouterr().err
    assert main(["trace", "replay", str(tmp_path / "none")]) == 2
    assert "none: No such file or directory; name a file of the setting event_log" in capsys.readouterr().err


def test_a_misspelt_second_word(capsys):
    assert main(["trace", "rply", "FILE"]) == 2
    assert "no command 'trace rply', and no file rply; did you mean trace replay?" in capsys.readouterr().err


def test_a_file_of_something_else(tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Title\n\ntext\n")
    assert main(["trace", str(tmp_path / "README.md")]) == 2
    assert (
        "README.md: none of the 2 lines is of a log of messages; give what Node(message_log=...) wrote"
        in capsys.readouterr().err
    )

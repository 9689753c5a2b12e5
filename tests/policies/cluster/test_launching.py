"""The words of a launch command, and the host that the next worker goes to."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.launching import SOON, HostChoice, LaunchTemplate, TemplateError, cannot_run
from blockwright.tests.claims import claim

VALUES = {"host": "h; rm -rf /", "name": "w1", "cores": 4, "bytes": 1 << 30, "devices": 0}


def test_a_template_is_cut_into_words_before_it_is_filled() -> None:
    template = LaunchTemplate("ssh -o 'BatchMode yes' {host} blockwright worker --memory {bytes} {{kept}}")
    assert template.fill(VALUES) == [
        "ssh", "-o", "BatchMode yes", "h; rm -rf /", "blockwright", "worker", "--memory", "1073741824", "{kept}",
    ]  # fmt: skip
    assert (template.program, template.placeholders) == ("ssh", {"host", "bytes"})


@claim("A launch command that cannot be used is refused with a sentence", of="serving")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "is empty; give a command such as 'ssh {host} blockwright worker --join -'"),
        ("ssh {hots} x", "has the placeholder {hots}, which there is not; there are {host}, {name}, {cores}"),
        ("ssh {} x", "has the placeholder {}, which there is not"),
        ("ssh {host!r} x", "has the placeholder {host!r}, which there is not"),
        ("ssh {host:>9} x", "has the placeholder {host:>9}, which there is not"),
        ("ssh {host.__class__} x", "has the placeholder {host.__class__}, which there is not"),
        ("ssh {host x", "has a brace without its other in '{host'; write {{ and }} for braces that stay"),
        ("ssh } x", "has a brace without its other in '}'"),
        ("ssh 'x", "cannot be cut into words (No closing quotation); close each quote, as for a shell"),
    ],
)
def test_what_is_no_template(line: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        LaunchTemplate(line)
    assert str(caught.value).startswith(said)


def test_hosts_and_their_place_in_the_template_go_together() -> None:
    with pytest.raises(TemplateError, match=r"has no \{host\}, but there are hosts \(a, b\); put \{host\} where their"):
        LaunchTemplate("srun x").check_hosts(["a", "b"])
    with pytest.raises(TemplateError, match=r"has \{host\}, but there are no hosts; name them in launch_hosts"):
        LaunchTemplate("ssh {host} x").check_hosts([])
    LaunchTemplate("srun x").check_hosts([])
    LaunchTemplate("ssh {host} x").check_hosts(["a"])


def test_the_program_is_known_unless_it_depends_on_the_worker() -> None:
    assert [LaunchTemplate(line).program for line in ("ssh {host} x", "'a {{b}}' c", "/run/{host}/go")] == [
        "ssh",
        "a {b}",
        "",
    ]


def test_a_program_that_cannot_be_run_is_told_from_other_causes() -> None:
    causes = (
        "not started: node w1#1 could not be started: x cannot be run (gone)",
        "not started: no room",
        "exited 1: cannot be run",
    )
    assert [cannot_run(cause) for cause in causes] == [True, False, False]


def test_a_worker_of_an_earlier_launcher_counts_at_its_host() -> None:
    hosts = HostChoice(["a", "b"])
    assert (hosts.take("a"), hosts.take(""), hosts.choose(), hosts.choose()) == ("a", "", "b", "a")
    hosts.give_back("a", 0, 1.0)
    hosts.give_back("a", 0, 1.0)
    assert hosts.choose() == "a"


def test_workers_are_spread_over_the_hosts() -> None:
    hosts = HostChoice(["a", "b"])
    assert [hosts.choose() for _ in range(4)] == ["a", "b", "a", "b"]
    hosts.give_back("b", 0, 1.0)
    assert [hosts.choose() for _ in range(2)] == ["b", "a"]
    assert HostChoice([]).choose() == ""


def test_a_host_at_which_commands_fail_comes_last_and_is_tried_again() -> None:
    hosts = HostChoice(["a", "b", "c"])
    tried = []
    for _ in range(4):
        tried.append(hosts.choose())
        hosts.give_back(tried[-1], 255, 1.0)
    assert tried == ["a", "b", "c", "a"]
    hosts.give_back(hosts.choose(), 137, SOON)  # at b, long after: no fault of the host
    assert hosts.choose() == "b"

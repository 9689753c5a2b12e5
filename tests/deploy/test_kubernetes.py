"""The manifests of deploy/kubernetes (docs/launchers.md): what they name exists, our parser takes their commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwright.actors.sizing import worker_names
from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import main, make_parser
from blockwright.api.commands.worker import starting
from blockwright.api.settings.options import make_settings
from blockwright.runtime.cluster.join_text import WORKER, JoinText
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
POD = {"POD_IP": "10.1.2.3", "POD_NAME": "blockwright-worker-0", "NODE_NAME": "node-a"}
KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return found


def objects() -> list[dict[str, Any]]:
    """All objects of the manifests that the kustomization lists."""
    files = [FOLDER / name for name in kustomization()["resources"]]
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in objects() if found["kind"] in kinds}


def pods() -> dict[str, dict[str, Any]]:
    """The pod templates, by component."""
    found = [one["spec"]["template"] for one in of_kind("Deployment", "StatefulSet").values()]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found}


def container(component: str) -> dict[str, Any]:
    (found,) = pods()[component]["spec"]["containers"]
    return dict(found)


def command_line(component: str) -> list[str]:
    """The words of a container's command, as Kubernetes fills them in."""
    one = container(component)
    names = {entry["name"] for entry in one["env"]}
    words = [*one["command"], *one["args"]]
    used = {name for word in words for name in re.findall(r"\$\(([A-Z_]+)\)", word)}
    assert used <= names, "a variable without a value stays as it is"
    return [re.sub(r"\$\(([A-Z_]+)\)", lambda match: POD[match[1]], word) for word in words]


def parsed(words: list[str]) -> Any:
    program, name, *rest = words
    assert program == "blockwright"
    return make_parser(name, COMMANDS[name].load()).parse_args(rest)


@claim("The command lines of the manifests and scripts in deploy/ are ones that the parser takes", of="installation")
def test_the_heads_command_line_makes_settings() -> None:
    given = parsed(command_line("head"))
    flags = {name: getattr(given, name) for name in ("workers", "port", "host", "listen")}
    assert flags == {"workers": "1", "port": "8000", "host": "0.0.0.0", "listen": "tcp://10.1.2.3:7000"}
    flags = {"workers": given.workers, "listen": given.listen, "head_keys": given.keys}
    made = make_settings(given.model, sets=given.set, flags=flags)
    assert (made.launching.launcher, worker_names(made)) == ("wait", ["w0"])
    scaler = of_kind("HorizontalPodAutoscaler")["blockwright-worker"]["spec"]
    workers = of_kind("StatefulSet")["blockwright-worker"]
    assert made.launching.launched_workers == scaler["minReplicas"] == workers["spec"]["replicas"]
    assert made.autoscaling.autoscale_max_workers - made.worker.workers == scaler["maxReplicas"]


def test_the_workers_command_line_is_a_start(tmp_path: Path) -> None:
    words = command_line("worker")
    (tmp_path / "worker.join").write_text(JoinText(("tcp://h:1",), "a" * 64, WORKER, 1 << 33, "b" * 12, "c" * 64).pack())
    (tmp_path / "worker.join").chmod(0o440)
    local = [word.replace("/join/", f"{tmp_path}/").replace("=/models", f"={tmp_path}") for word in words]
    given = starting(parsed(local))
    assert (given.name, given.listen, given.labels) == ("blockwright-worker-0", "tcp://10.1.2.3:7001", {"node": "node-a"})
    assert given.wish.memory == 12 << 30


def test_the_gateways_command_line_is_parsed() -> None:
    given = parsed(command_line("gateway"))
    assert (given.join, given.host, int(given.port)) == ("@/join/gateway.join", "0.0.0.0", 8000)
    assert given.listen == "tcp://10.1.2.3:7001"


def test_a_wrong_command_line_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        parsed([*command_line("worker"), "--memroy=1GiB"])


# what belongs together


def matches(selector: dict[str, Any]) -> list[str]:
    wanted = selector.get("matchLabels", selector)
    return [name for name, pod in pods().items() if wanted.items() <= pod["metadata"]["labels"].items()]


def test_whatever_selects_pods_selects_the_ones_of_its_name() -> None:
    for one in objects():
        kind, name = one["kind"], one["metadata"]["name"]
        spec = one.get("spec", {})
        wanted = "gateway" if name == "blockwright" else name.removeprefix("blockwright-")
        if kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
            assert matches(spec["selector"]) == [wanted], (kind, name)
        elif kind == "NetworkPolicy":
            assert matches(spec["podSelector"]) == ([wanted] if wanted != "members" else [*pods()]), name
        elif kind == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            assert target["name"] in of_kind(target["kind"]), name
    assert of_kind("StatefulSet")["blockwright-worker"]["spec"]["serviceName"] in of_kind("Service")


def test_what_pods_mount_is_there() -> None:
    generator = kustomization()["secretGenerator"][0]
    keys = {Path(file).name for file in generator["files"]}
    claims = of_kind("PersistentVolumeClaim")
    for name, pod in pods().items():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes.keys(), name
        secret = volumes["join"]["secret"]
        assert secret["secretName"] == generator["name"]
        assert {item["key"] for item in secret["items"]} <= keys, name
        assert secret["defaultMode"] == 0o440, "a file that all may read is warned of"
        if "models" in volumes:
            assert volumes["models"]["persistentVolumeClaim"]["claimName"] in claims


def test_probes_and_services_name_ports_that_are_listened_at() -> None:
    for name in pods():
        one, words = container(name), " ".join(command_line(name))
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        assert all(f":{port}" in words or f"--port={port}" in words for port in ports.values()), name
        for probe in (one[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in one):
            assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports
    for name, service in of_kind("Service").items():
        (component,) = matches(service["spec"]["selector"])
        ports = {port["name"] for port in container(component)["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, name


def test_pods_have_time_to_drain_and_few_rights() -> None:
    drain = make_settings("x").faults.drain_timeout
    for name, pod in pods().items():
        spec = pod["spec"]
        assert spec["terminationGracePeriodSeconds"] > drain + 30, name
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert container(name)["securityContext"]["readOnlyRootFilesystem"]


def test_the_secret_is_made_of_texts_for_the_heads_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is run, in a copy of its folder."""
    shutil.copytree(FOLDER, tmp_path / "k")
    program = tmp_path / "blockwright"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m blockwright "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    subprocess.run([tmp_path / "k" / "make-secret.sh", "shop"], check=True, capture_output=True)
    made = {file.name: file for file in (tmp_path / "k" / "keys").iterdir()}
    assert {Path(file).name for file in kustomization()["secretGenerator"][0]["files"]} == made.keys()
    for role in ("worker", "gateway"):
        text = JoinText.parse(made[f"{role}.join"].read_text())
        assert (text.addresses, text.role) == (("tcp://blockwright-head.shop.svc:7000",), role)
        assert made[f"{role}.join"].stat().st_mode & 0o777 == 0o600
    assert "blockwright-head" in of_kind("Service")


def test_the_files_of_the_secret_are_never_committed() -> None:
    assert (FOLDER / ".gitignore").read_text() == "keys/\n"


def rendered(folder: Path) -> list[dict[str, Any]]:
    """The objects as kubectl renders them, in a copy with files in the place of secrets."""
    shutil.copytree(FOLDER, folder)
    for name in kustomization()["secretGenerator"][0]["files"]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    found = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(found))


@KUBECTL
def test_kubectl_renders_all_objects(tmp_path: Path) -> None:
    found = rendered(tmp_path / "k")
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert names == {*((one["kind"], one["metadata"]["name"]) for one in objects()), ("Secret", "blockwright-join")}
    templates = [one["spec"]["template"]["spec"] for one in found if "template" in one.get("spec", {})]
    images = {box["image"] for template in templates for box in template["containers"]}
    assert images == {"registry.example/blockwright:0.6.0"}


def test_show_settings_takes_the_heads_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, *words = command_line("head")
    assert main([*words, "--show-settings"]) == 0
    assert 'launcher = "wait"' in capsys.readouterr().out

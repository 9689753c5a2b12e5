"""The manifests against the schemas of three versions of Kubernetes, strictly: no unknown field, no wrong type.

The schemas are a package of the index, which is installed for this test alone. Where it cannot be had the test is skipped,
by name.
"""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.deploy.test_kubernetes import KUBECTL, objects, rendered

pytestmark = pytest.mark.nightly
PACKAGE = "kubernetes-validate"
VERSIONS = 3  # the newest that the package knows
INSTALL = 600  # seconds


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("schemas")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), PACKAGE]
    found = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL, check=False)
    if found.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed here: {found.stderr.strip().splitlines()[-1:]}")
    sys.path.append(str(folder))
    try:
        yield importlib.import_module("kubernetes_validate")
    finally:
        sys.path.remove(str(folder))


def versions(schemas: ModuleType) -> list[str]:
    """The newest versions that the package has strict schemas of."""
    folder = Path(str(schemas.__file__)).parent / "kubernetes-json-schema"
    known = {path.name.removeprefix("v").partition("-")[0] for path in folder.glob("v*-local-strict")}
    newest = sorted(known, key=lambda version: [int(part) for part in version.split(".")])[-VERSIONS:]
    return [version.rpartition(".")[0] for version in newest]


@claim("The Kubernetes manifests are valid, strictly, against the schemas of three versions", of="installation")
def test_every_object_is_valid_in_three_versions(schemas: ModuleType) -> None:
    found = versions(schemas)
    assert len(found) == VERSIONS
    for version in found:
        for one in objects():
            schemas.validate(one, version, strict=True)


@KUBECTL
def test_what_kubectl_renders_is_valid_too(schemas: ModuleType, tmp_path: Path) -> None:
    for version in versions(schemas):
        for one in rendered(tmp_path / version):
            schemas.validate(one, version, strict=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: one["spec"].update(replicsa=1),
        lambda one: one["spec"].update(replicas="two"),
        lambda one: one["spec"]["template"]["spec"]["containers"][0].update(imagePullPolice="Always"),
    ],
)
def test_a_wrong_field_would_be_noticed(schemas: ModuleType, spoil: Callable[[dict[str, Any]], None]) -> None:
    one = copy.deepcopy(next(found for found in objects() if found["kind"] == "Deployment"))
    spoil(one)
    for version in versions(schemas):
        with pytest.raises(schemas.ValidationError):
            schemas.validate(one, version, strict=True)

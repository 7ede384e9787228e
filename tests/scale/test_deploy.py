"""What is deployed: the image, the manifests, and that they speak of what exists."""

from __future__ import annotations

import importlib
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from anytimecl.cli import app
from anytimecl.scale.serving.on_serve import planned

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"
MANIFESTS = [
    (file.name, told)
    for file in sorted(DEPLOY.glob("*.yaml"))
    for told in yaml.safe_load_all(file.read_text())
]
OF_RAY = [(name, told) for name, told in MANIFESTS if told["apiVersion"] == "ray.io/v1"]


def cluster(told: dict[str, Any]) -> dict[str, Any]:
    """The part that says what a cluster is made of."""
    spec: dict[str, Any] = told["spec"]
    inside = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}.get(told["kind"])
    return spec if inside is None else spec[inside]


def groups(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield cluster(told)["headGroupSpec"]
    yield from cluster(told)["workerGroupSpecs"]


def test_there_is_a_cluster_a_job_and_a_service() -> None:
    assert {told["kind"] for _, told in OF_RAY} == {"RayCluster", "RayJob", "RayService"}


def test_what_is_served_can_be_and_asks_for_tokens() -> None:
    [service] = [told for _, told in OF_RAY if told["kind"] == "RayService"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    [application] = config["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    served = planned(application["args"]).served
    assert served.guarded
    for group in groups(service):
        [container] = group["template"]["spec"]["containers"]
        places = [mount["mountPath"] for mount in container["volumeMounts"]]
        for path in (served.folder, str(served.tokens)):
            assert any(Path(path).is_relative_to(place) for place in places)
    schema = pytest.importorskip("ray.serve.schema", reason="NO RAY: its schema is not checked")
    schema.ServeDeploySchema.model_validate(config)


@pytest.mark.parametrize(("name", "told"), MANIFESTS)
def test_kubernetes_takes_the_manifests(name: str, told: dict[str, Any]) -> None:
    if told["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(told, KUBERNETES, strict=True)
        return
    for group in groups(told):  # what KubeRay makes pods of
        template = group["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
        pod["metadata"] = {"name": "x", **template.get("metadata", {})}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize(("name", "told"), OF_RAY)
def test_clusters_are_of_this_version_and_closed(name: str, told: dict[str, Any]) -> None:
    lock = (ROOT / "constraints.txt").read_text().split()
    assert f"ray=={cluster(told)['rayVersion']}" in lock
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cluster(told)["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster(told)["authOptions"] == {"mode": "token"}  # else Ray asks nobody for one
    for group in groups(told):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        claimed = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["image"] == f"anytimecl-ray:{project['version']}"
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= claimed
    assert all(
        isinstance(value, str) for g in groups(told) for value in g["rayStartParams"].values()
    )
    for group in cluster(told)["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_commands_in_the_manifests_can_be_run() -> None:
    [job] = [told for _, told in OF_RAY if told["kind"] == "RayJob"]
    commands = [job["spec"]["entrypoint"]]
    text = (DEPLOY / "raycluster.yaml").read_text().replace("\\\n#", "")
    commands += [
        line[line.index("anytimecl scale") :] for line in text.splitlines() if "exec" in line
    ]
    assert len(commands) == 2
    main: Any = get_command(app)
    for command in commands:
        words, known = shlex.split(command)[1:], main
        while hasattr(known, "commands"):
            known = known.commands[words.pop(0)]
        options = {name for option in known.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_the_image_can_be_built_by_anyone() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert "-c constraints.txt '.[serve,scale,export]'" in text
    assert "USER 10001" in text
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("NO HADOLINT: there is no build of it for this system")
    done = subprocess.run([linter, DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

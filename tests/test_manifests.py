"""The Kubernetes manifests of the documentation: valid for the API, consistent, and with commands that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kstore.cli.program import COMMANDS
from kstore.components import load_table
from kstore.components.placement import place_components
from kstore.settings import load_settings

Manifest = dict[str, Any]
Container = dict[str, Any]

GUIDES = Path(__file__).resolve().parents[1] / "docs/guides"
FILES = sorted((GUIDES / "kubernetes").glob("*.yaml"))
# The first release in which sidecars need no feature gate, and the newest that the validator knows.
RELEASES = ("1.29", kubernetes_validate.latest_version())
GRACE_PERIOD = 10
"""How many seconds `kstore exec` and `kstore watch` take for a last commit."""


def load(file: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(file.read_text()))


MANIFESTS = [manifest for file in FILES for manifest in load(file)]
CONFIG = {m["metadata"]["name"]: m["data"] for m in MANIFESTS if m["kind"] == "ConfigMap"}


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def pod_of(manifest: Manifest) -> Manifest:
    """The pod that a Deployment or a CronJob makes."""
    spec: Manifest = manifest["spec"]
    spec = spec.get("jobTemplate", {"spec": spec})["spec"]
    return spec["template"]["spec"]


PODS = [pytest.param(pod_of(m), id=name_of(m)) for m in MANIFESTS if m["kind"] in ("Deployment", "CronJob")]


def containers_of(pod: Manifest) -> list[Container]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment_of(container: Container) -> dict[str, str]:
    """What the container's environment holds in addition to what its image sets."""
    maps = [CONFIG[source["configMapRef"]["name"]] for source in container.get("envFrom", ())]
    return {name: value for data in maps for name, value in data.items()} | {
        variable["name"]: variable["value"] for variable in container.get("env", ())
    }


def kstore_commands() -> Iterator[Any]:
    for pod in PODS:
        for container in containers_of(pod.values[0]):
            program, *arguments = container["command"]
            if program == "kstore":
                yield pytest.param(arguments, id=f"{pod.id}-{container['name']}")


def rename_a_field(deployment: Manifest) -> None:
    pod = pod_of(deployment)
    pod["containers"][0]["volumeMount"] = pod["containers"][0].pop("volumeMounts")


def write_a_duration(deployment: Manifest) -> None:
    pod_of(deployment)["terminationGracePeriodSeconds"] = "60s"


def leave_out_the_selector(deployment: Manifest) -> None:
    del deployment["spec"]["selector"]


def indent_too_little(deployment: Manifest) -> None:
    deployment["spec"]["volumes"] = pod_of(deployment).pop("volumes")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)
def test_a_manifest_is_what_the_schema_of_its_kind_asks_for(manifest: Manifest, release: str) -> None:
    kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("break_it", [rename_a_field, write_a_duration, leave_out_the_selector, indent_too_little])
def test_a_broken_manifest_is_refused(break_it: Callable[[Manifest], None]) -> None:
    manifest = deepcopy(next(m for m in MANIFESTS if m["kind"] == "Deployment"))
    kubernetes_validate.validate(manifest, RELEASES[-1], strict=True)
    break_it(manifest)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, RELEASES[-1], strict=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_page_links_to_every_manifest(file: Path) -> None:
    assert f"(kubernetes/{file.name})" in (GUIDES / "kubernetes.md").read_text()


@pytest.mark.parametrize("arguments", [*kstore_commands()])
def test_the_command_line_of_a_container_is_understood(arguments: list[str]) -> None:
    name, *rest = arguments
    assert name in COMMANDS
    import_module(f"kstore.cli.{name}").command.make_context(name, rest)


@pytest.mark.parametrize("pod", PODS)
def test_the_settings_of_a_container_are_settings(pod: Manifest) -> None:
    for container in containers_of(pod):
        load_settings(environment_of(container), Path("/"))


@pytest.mark.parametrize("pod", PODS)
def test_what_a_pod_mounts_is_there(pod: Manifest) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = {m["metadata"]["name"] for m in MANIFESTS if m["kind"] == "PersistentVolumeClaim"}
    mounted = {mount["name"] for container in containers_of(pod) for mount in container["volumeMounts"]}
    assert mounted == volumes.keys()
    assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= claims


@pytest.mark.parametrize("pod", PODS)
def test_store_and_cache_root_are_where_the_settings_say(pod: Manifest) -> None:
    settings = load_settings(CONFIG["kstore"], Path("/"))
    mounts = {(mount["name"], mount["mountPath"]) for c in containers_of(pod) for mount in c["volumeMounts"]}
    assert mounts <= {("store", str(Path(settings.store[0]).parent)), ("cache", settings.cache_root)}


@pytest.mark.parametrize("pod", [pod for pod in PODS if "Deployment" in str(pod.id)])
def test_a_pod_waits_for_the_last_commit(pod: Manifest) -> None:
    assert pod["terminationGracePeriodSeconds"] >= 2 * GRACE_PERIOD


@pytest.mark.parametrize("pod", PODS)
def test_all_containers_of_a_store_are_one_user(pod: Manifest) -> None:
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (1000, 1000, 1000)
    assert not any("securityContext" in container for container in containers_of(pod))


@pytest.mark.parametrize("pod", PODS)
def test_a_container_has_the_gpu_or_names_it(pod: Manifest) -> None:
    """Otherwise it would restore what was compiled for a CPU; and a sidecar's GPU comes on top of the app's."""
    gpu = "nvidia.com/gpu"
    for container in pod.get("initContainers", ()):
        has_one = gpu in container.get("resources", {}).get("limits", {})
        assert has_one != ("KSTORE_GPU" in environment_of(container))
        assert not (has_one and container.get("restartPolicy") == "Always")


def test_an_app_without_kstore_has_the_variables_that_kstore_would_set() -> None:
    table, root = load_table(), CONFIG["kstore"]["KSTORE_CACHE_ROOT"]
    assert CONFIG["kstore-caches"] == place_components(table, table, root, {}, before_import=True).variables

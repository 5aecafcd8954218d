"""The rendered Kubernetes manifests: their properties, and that their parts fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
import yaml  # type: ignore[import-untyped]

from ingester import __version__
from ingester.config.exposure import check_exposure
from ingester.config.settings import Settings
from ingester.config.sources import load
from ingester.config.units import parse_duration
from tests.cli.conftest import run_command
from tests.deploy.render import HAPROXY, MANIFESTS, OVERLAYS, RENDERED, first_line
from tests.drivers.daemon import Daemon
from tests.drivers.secured import Secured
from tests.drivers.wire import numbers, put, rows

Json = dict[str, Any]
MARGIN_S = 30.0
SECURED = ("production", "exposed", "diskless", "scaled-in")
WITH_VOLUMES = tuple(each for each in OVERLAYS if each != "diskless")
PROXIED = ("exposed",)
"""Overlays with HAProxy in the daemon's pod."""


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def objects(overlay: str) -> list[Json]:
    """Return all objects of an overlay."""
    return list(yaml.safe_load_all((RENDERED / f"{overlay}.yaml").read_text()))


def of_kind(overlay: str, kind: str) -> list[Json]:
    """Return the objects of one kind."""
    return [each for each in objects(overlay) if each["kind"] == kind]


def pod(overlay: str) -> Json:
    """Return the pod in which an overlay runs the daemon."""
    (found,) = of_kind(overlay, "StatefulSet")
    spec: Json = found["spec"]["template"]["spec"]
    return spec


def containers(overlay: str) -> list[Json]:
    """Return the containers of a pod, including the proxy."""
    return [*pod(overlay).get("initContainers", []), *pod(overlay)["containers"]]


def variables(overlay: str, name: str = "ingester-0") -> dict[str, str]:
    """Return the environment of a pod's daemon, expanded as the kubelet does."""
    fields = {"metadata.name": name, "metadata.namespace": "data"}
    found: dict[str, str] = {}
    for each in pod(overlay)["containers"][0]["env"]:
        if "valueFrom" in each:
            value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            # A reference to a variable that is defined later stays unexpanded.
            value = re.sub(
                r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), each["value"]
            )
        found[each["name"]] = value
    return found


def settings(overlay: str) -> Settings:
    """Return the settings of a pod's daemon."""
    return load({}, variables(overlay), None).settings


def test_what_is_rendered_is_made_of_the_overlays_as_they_are(overlay: str) -> None:
    said = (RENDERED / f"{overlay}.yaml").read_text().partition("\n")[0]
    assert said == first_line(), "run make manifests"
    sources = {each.parent.name for each in (MANIFESTS / "overlays").glob("*/kustomization.yaml")}
    assert sources == set(OVERLAYS)


def test_the_variables_are_settings_and_let_nobody_in_unasked(overlay: str) -> None:
    # Otherwise the cluster adds INGESTER_…_SERVICE_HOST, which is an unknown setting.
    assert pod(overlay)["enableServiceLinks"] is False
    found = settings(overlay)
    listen = "127.0.0.1:18082" if overlay in PROXIED else "0.0.0.0:8082"
    assert (found.id, found.flight.listen) == ("ingester-0", listen)
    check_exposure(found)
    assert found.insecure is (overlay not in SECURED)
    mounted = [each["mountPath"] for each in pod(overlay)["containers"][0]["volumeMounts"]]
    assert str(found.data_dir) in mounted
    if not found.insecure:
        named = (found.tls.cert, found.tls.key, found.auth.tokens)
        told = variables(overlay)
        for path in filter(None, (*named, told["INGESTER_TLS_CA"], told["INGESTER_TOKEN_FILE"])):
            assert str(Path(str(path)).parent) in mounted
        assert bool(found.tls.cert) is (overlay not in PROXIED)
    else:
        # An insecure overlay restricts access by network policy, or is for a private cluster.
        assert overlay == "laptop" or of_kind(overlay, "NetworkPolicy")


def test_a_pod_is_found_by_its_name_in_the_headless_service(overlay: str) -> None:
    (stateful,) = of_kind(overlay, "StatefulSet")
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(overlay, "Service")}
    headless = services[stateful["spec"]["serviceName"]]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in services["ingester-any"]
    scheme = "grpc" if settings(overlay).insecure else "grpc+tls"
    assert settings(overlay).flight.advertise == f"{scheme}://ingester-0.ingester.data.svc:8082"
    own = variables(overlay)["INGESTER_ENDPOINT"]
    ways = [f"{scheme}://127.0.0.1:8082", settings(overlay).flight.advertise]
    assert own in (["grpc://127.0.0.1:18082"] if overlay in PROXIED else ways)


def test_a_pod_has_the_time_to_drain_and_to_stop(overlay: str) -> None:
    command = pod(overlay)["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:4] == ["ingester", "drain", "--wait", "--timeout"]
    drain_s, stop_s = parse_duration(command[4]), settings(overlay).stop_deadline
    grace_s = pod(overlay)["terminationGracePeriodSeconds"]
    assert grace_s == drain_s + stop_s + MARGIN_S
    page = (MANIFESTS.parents[1] / "docs" / "deployment.md").read_text()
    assert f"{grace_s} s | {drain_s:g} s of draining" in page


def test_ports_probes_and_selectors_fit_each_other(overlay: str) -> None:
    (stateful,) = of_kind(overlay, "StatefulSet")
    container = pod(overlay)["containers"][0]
    ports = {
        port["name"]: port["containerPort"]
        for each in containers(overlay)
        for port in each["ports"]
    }
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    for service in of_kind(overlay, "Service"):
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
        assert service["spec"]["selector"].items() <= labels.items()
    scheme = {} if settings(overlay).insecure else {"scheme": "HTTPS"}
    for probe, path in (("liveness", "live"), ("readiness", "ready"), ("startup", "ready")):
        port = ports["http"] if overlay in PROXIED else "http"
        asked = {"path": f"/health/{path}", "port": port, **scheme}
        assert container[f"{probe}Probe"]["httpGet"] == asked
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1
    for spread in pod(overlay)["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    for policy in of_kind(overlay, "NetworkPolicy"):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert named == set(ports)
    for monitor in of_kind(overlay, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        chosen = [
            s for s in of_kind(overlay, "Service") if wanted <= s["metadata"]["labels"].items()
        ]
        assert [each["metadata"]["name"] for each in chosen] == ["ingester"]
        assert monitor["spec"]["endpoints"][0]["port"] in ports


def test_every_mount_has_a_volume(overlay: str) -> None:
    (stateful,) = of_kind(overlay, "StatefulSet")
    claims = [each["metadata"]["name"] for each in stateful["spec"].get("volumeClaimTemplates", [])]
    volumes = {each["name"] for each in pod(overlay).get("volumes", [])} | set(claims)
    for container in containers(overlay):
        assert {each["name"] for each in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("overlay", WITH_VOLUMES)
def test_a_volume_with_a_log_outlives_its_pod(overlay: str) -> None:
    (stateful,) = of_kind(overlay, "StatefulSet")
    kept = stateful["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert settings(overlay).wal.disk == "on"


def test_diskless_pods_have_scratch_space_only_and_acknowledge_at_the_store() -> None:
    (stateful,) = of_kind("diskless", "StatefulSet")
    assert not {"volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy"} & set(
        stateful["spec"]
    )
    kept = {each["name"]: set(each) - {"name"} for each in pod("diskless")["volumes"]}
    assert {kind for kinds in kept.values() for kind in kinds} == {"emptyDir", "secret"}
    (data,) = [each for each in pod("diskless")["volumes"] if each["name"] == "data"]
    assert data["emptyDir"]["sizeLimit"]
    found = settings("diskless")
    assert (found.wal.disk, found.default_ack) == ("off", "store")
    # The id is the pod's name, which its replacement has too.
    assert found.id == "ingester-0"
    # All else is production's.
    (with_volumes,) = of_kind("production", "StatefulSet")
    for name in ("replicas", "podManagementPolicy", "serviceName"):
        assert stateful["spec"][name] == with_volumes["spec"][name]
    own = {"INGESTER_WAL__DISK": "off"}
    assert variables("diskless") == variables("production") | own


def test_a_diskless_pod_is_replaced_elsewhere_and_continues(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        name: value
        for name, value in variables("diskless").items()
        if not re.search("TLS|AUTH|TOKEN|ADVERTISE|HOSTS", name)
    } | {"INGESTER_STORE": f"file://{tmp_path}/store"}
    table = ("pods", "t")
    with Daemon.start(tmp_path / "node-1", environment=told) as first:
        with fl.connect(first.flight) as client:
            put(client, table, numbers(0, 10))
        first.kill()
    shutil.rmtree(tmp_path / "node-1")
    with Daemon.start(tmp_path / "node-2", environment=told) as second:
        assert second.ready["ingester_id"] == "ingester-0"
        with fl.connect(second.flight) as client:
            assert len(rows(client, table)) == 10
            put(client, table, numbers(10, 10))
            assert len(rows(client, table)) == 20
        assert second.terminate() == 0


def test_no_container_may_do_more_than_it_needs(overlay: str) -> None:
    for each in (*of_kind(overlay, "StatefulSet"), *of_kind(overlay, "Job")):
        spec = each["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert "memory" in container["resources"]["limits"]


def test_the_proxy_of_a_pod_runs_as_long_as_the_daemon_and_leads_to_it() -> None:
    (proxy,) = pod("exposed")["initContainers"]
    assert proxy["restartPolicy"] == "Always"  # the proxy starts first and stops last
    told = {each["name"]: each["value"] for each in proxy["env"]}
    found = settings("exposed")
    assert (told["DAEMON_FLIGHT"], told["DAEMON_HTTP"]) == (found.flight.listen, found.http.listen)
    ports = [port["containerPort"] for port in proxy["ports"]]
    assert [told["PROXY_FLIGHT"], told["PROXY_HTTP"]] == [f":{port}" for port in ports]
    mounted = {each["mountPath"] for each in proxy["volumeMounts"]}
    assert str(Path(told["PROXY_CERT"]).parent) in mounted
    (shipped,) = of_kind("exposed", "ConfigMap")
    assert shipped["data"]["haproxy.cfg"] == (HAPROXY / "haproxy.cfg").read_text()
    (volume,) = [each for each in pod("exposed")["volumes"] if each["name"] == "haproxy"]
    assert volume["configMap"]["name"] == shipped["metadata"]["name"]


def test_after_scaling_in_a_job_adopts_the_volume_that_nobody_has() -> None:
    (stateful,) = of_kind("scaled-in", "StatefulSet")
    (job,) = of_kind("scaled-in", "Job")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == ["wal", "adopt", "/data"]
    (claim,) = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    # The first removed pod.
    gone = f"data-ingester-{stateful['spec']['replicas']}"
    assert claim["persistentVolumeClaim"]["claimName"] == gone
    # Two pods with the volume would be two daemons on one log.
    (template,) = stateful["spec"]["volumeClaimTemplates"]
    assert template["spec"]["accessModes"] == ["ReadWriteOncePod"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["INGESTER_STORE"] == variables("scaled-in")["INGESTER_STORE"]
    assert container["envFrom"] == pod("scaled-in")["containers"][0]["envFrom"]


def test_a_pod_drains_itself_by_what_its_variables_say(tmp_path: Path) -> None:
    secured = Secured(tmp_path, {"operator": "*:admin", "reader": "*:read"})
    (tmp_path / "token").write_text(secured.tokens["operator"])
    (tmp_path / "less").write_text(secured.tokens["reader"])
    there = {
        "/etc/ingester/tls/tls.crt": str(secured.pair.cert),
        "/etc/ingester/tls/tls.key": str(secured.pair.key),
        "/etc/ingester/tls/ca.crt": str(secured.ca),
        "/etc/ingester/tokens/tokens.json": str(tmp_path / "tokens.json"),
        "/etc/ingester/operator/token": str(tmp_path / "token"),
        "s3://bucket/prefix": f"file://{tmp_path}/store",
    }
    told: dict[str, Any] = {
        name: there.get(value, value) for name, value in variables("production").items()
    }
    with Daemon.start(tmp_path / "data", environment=told) as daemon:
        assert daemon.ready["ingester_id"] == "ingester-0"
        _, *command = pod("production")["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        told["INGESTER_ENDPOINT"] = daemon.flight
        less = told | {"INGESTER_TOKEN_FILE": str(tmp_path / "less")}
        refused = run_command(*command, cwd=tmp_path, **less)
        assert refused.returncode == 1
        assert b"admin" in refused.stderr
        done = run_command(*command, cwd=tmp_path, **told)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"drained" in done.stdout
        assert daemon.terminate() == 0


def test_the_overlay_of_the_documentation_renders_to_what_it_says(tmp_path: Path) -> None:
    if not (kubectl := shutil.which("kubectl")):
        pytest.skip("kubectl is not installed")
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    mine = folder / "mine"
    mine.mkdir()
    text = (MANIFESTS.parents[1] / "docs" / "deployment.md").read_text()
    overlay, account = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (mine / "kustomization.yaml").write_text(overlay)
    (mine / "account.yaml").write_text(account)
    rendered = subprocess.run(
        [kubectl, "kustomize", str(mine)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = list(yaml.safe_load_all(rendered))
    parts = {(part["kind"], part["metadata"]["name"]): part for part in found}
    pods = parts["StatefulSet", "ingester"]["spec"]
    pod = pods["template"]["spec"]
    assert pod["serviceAccountName"] == parts["ServiceAccount", "ingester"]["metadata"]["name"]
    assert pods["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "gp3"
    (daemon,) = pod["containers"]
    assert daemon["image"] == f"registry.example.org/ingester:{__version__}"
    variables = {each["name"]: each.get("value") for each in daemon["env"]}
    assert variables["INGESTER_STORE"] == "s3://lake/prod"

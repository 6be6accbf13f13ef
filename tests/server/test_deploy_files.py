"""The files of docs/operate for containers: valid, and true about the command, its keys and its metrics."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from glidemq_py import Job, JobState, Queue
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.inside import QueueKeys, read_arguments
from tests.server.worker_support import WorkerFor

OPERATE = Path(__file__).resolve().parents[2] / "docs" / "operate"
KUBERNETES = "1.31"
USERS_OF_DEBIAN = (
    "root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy", "www-data", "backup",
    "list", "irc", "_apt", "nobody",
)  # fmt: skip
"""Users of the image that ours is built on."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((OPERATE / name).read_text(encoding="utf-8")))


def of_kind(kind: str, name: str = "kubernetes/worker.yaml") -> dict[str, Any]:
    (found,) = (each for each in documents(name) if each["kind"] == kind)
    return found


def arguments_of(command: list[str]):
    assert command[:2] == ["glidemq", "worker"]
    return read_arguments(command[2:])


@pytest.mark.parametrize("kind", ["Secret", "Deployment", "PodDisruptionBudget"])
def test_manifests_are_valid(kind: str):
    kubernetes_validate.validate(of_kind(kind), KUBERNETES, strict=True)


def test_an_invalid_manifest_is_rejected():
    deployment = of_kind("Deployment")
    deployment["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


def test_deployment_runs_and_probes_a_worker():
    spec = of_kind("Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = arguments_of(container["command"])
    assert spec["terminationGracePeriodSeconds"] * 1_000 > given.shutdown_timeout
    assert container["ports"] == [{"name": "metrics", "containerPort": given.metrics_port}]
    for probe in ("startupProbe", "livenessProbe"):
        assert arguments_of(container[probe]["exec"]["command"]).check
    (url,) = container["env"]
    reference = url["valueFrom"]["secretKeyRef"]
    secret = of_kind("Secret")
    assert (url["name"], reference["name"]) == ("GLIDEMQ_URL", secret["metadata"]["name"])
    assert reference["key"] in secret["stringData"]


def test_keda_scales_the_deployment_by_states_that_exist():
    for scaled in documents("kubernetes/keda.yaml")[:2]:
        assert scaled["spec"]["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]
        assert scaled["spec"]["minReplicaCount"] >= 1
    by_metric, by_stream, authentication = documents("kubernetes/keda.yaml")
    (trigger,) = by_metric["spec"]["triggers"]
    (selector,) = re.findall(r"glidemq_jobs\{([^}]*)\}", trigger["metadata"]["query"])
    (states,) = re.findall(r'state=~"([^"]*)"', selector)
    assert {*states.split("|")} <= {*map(str, JobState), "prioritized", "group-waiting"}
    (stream,) = by_stream["spec"]["triggers"]
    assert stream["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert stream["metadata"]["stream"] == QueueKeys("glide", "emails").stream


async def test_length_of_the_stream_counts_waiting_and_active_jobs(
    worker_for: WorkerFor, url: str, server: GlideMQServer, queue_name: str
):
    """KEDA's trigger reads XLEN."""
    stream = QueueKeys("glide", queue_name).stream
    seen: Any = []
    with RespClient.from_url(server.url) as direct:

        async def handler(job: Job):
            seen.append(direct.execute("XLEN", stream))

        async with Queue(queue_name, url) as queue:
            await queue.add_bulk([("a",), ("b",), ("c",)])
            assert direct.execute("XLEN", stream) == 3
            async with worker_for(handler) as worker:
                await worker.drain()
        assert seen[0] == 3
        assert direct.execute("XLEN", stream) == 0


def test_image_runs_and_checks_a_worker():
    lines = (OPERATE / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    entry, command, check = (
        cast("list[str]", yaml.safe_load(line[line.index("[") :]))
        for line in lines
        if line.startswith(("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    )
    assert arguments_of([*entry, *command]).shutdown_timeout == 60_000
    assert arguments_of(check).check
    (user,) = (line.removeprefix("USER ") for line in lines if line.startswith("USER "))
    assert any(line.startswith("RUN useradd ") and line.endswith(f" {user}") for line in lines)
    assert user not in USERS_OF_DEBIAN  # `useradd` would fail


def test_compose_file_gives_the_worker_time_and_the_server_its_settings():
    (composed,) = documents("docker/compose.yaml")
    server, worker = composed["services"]["valkey"], composed["services"]["worker"]
    for setting in ("--appendonly yes", "--maxmemory-policy noeviction"):
        assert setting in " ".join(server["command"])
    assert server["volumes"] == [f"{next(iter(composed['volumes']))}:/data"]
    assert worker["environment"]["GLIDEMQ_URL"] == "valkey://valkey:6379"
    assert worker["stop_grace_period"] == "90s"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_unit_is_valid(tmp_path: Path):
    text = (OPERATE / "deploy.md").read_text(encoding="utf-8")
    (unit,) = re.findall(r"```ini\n(.*?)```", text, re.DOTALL)
    (start,) = re.findall(r"ExecStart=\S+/glidemq worker (.*)", unit)
    given = read_arguments(start.split())
    (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(seconds) * 1_000 > (given.shutdown_timeout or 0)
    path = tmp_path / "mail-worker.service"
    path.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit), encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=100, check=False
    )
    problems = [line for line in checked.stderr.splitlines() if "mail-worker.service" in line]
    assert problems == []

"""Reading a server's configuration from INFO."""

import pytest

from glidemq_py._client.server_check import findings_of

GOOD = {
    "valkey_version": "9.1.2", "redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": "1",
    "role": "master", "cluster_enabled": "0",
}  # fmt: skip


def kinds(changes: dict[str, str | None], **how: bool) -> list[str]:
    info = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return [finding.kind for finding in findings_of(info, **how)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"maxmemory_policy": "allkeys-lru"}, ["eviction"]),
        ({"maxmemory_policy": "allkeys-random"}, ["eviction"]),
        ({"maxmemory_policy": "volatile-ttl"}, ["volatile"]),
        ({"maxmemory_policy": None}, ["unknown"]),
        ({"aof_enabled": "0"}, ["aof"]),
        ({"aof_enabled": None}, ["unknown"]),
        ({"role": "slave"}, ["replica"]),
        ({"role": None, "cluster_enabled": None}, []),
        ({"cluster_enabled": "1"}, ["cluster"]),
        ({"valkey_version": "8.0.9"}, ["version"]),
        ({"valkey_version": "8.1.0"}, []),
        ({"valkey_version": "10.0"}, []),
        ({"valkey_version": None, "redis_version": "6.2.14"}, ["version"]),
        ({"valkey_version": None, "redis_version": "7.0.15"}, []),
        ({"valkey_version": None, "redis_version": "unstable"}, ["unknown"]),
        ({"valkey_version": None, "redis_version": None}, ["unknown"]),
    ],
)
def test_findings(changes: dict[str, str | None], expected: list[str]):
    assert kinds(changes) == expected


@pytest.mark.parametrize(("tls", "scheme"), [(False, "valkey"), (True, "valkeys")])
def test_suggested_scheme_keeps_tls(tls: bool, scheme: str):
    (finding,) = findings_of({**GOOD, "cluster_enabled": "1"}, tls=tls)
    assert finding.text == f"is a cluster node; use {scheme}+cluster:// instead of {scheme}://"


def test_a_cluster_connection_expects_nodes_of_a_cluster():
    assert kinds({"cluster_enabled": "1"}, cluster=True) == []


def test_a_connection_that_reads_from_replicas_may_see_one():
    assert kinds({"role": "slave"}, may_be_replica=True) == []

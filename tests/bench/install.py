"""Provide the measured libraries: ours from this environment, the peers installed once into a cache.

The cache is `GLIDEMQ_BENCH_CACHE`, or `glidemq-bench` in the user's cache directory: never the repository.
`GLIDEMQ_BENCH_PEERS_PYTHON` (a Python that has the Python peers) and `GLIDEMQ_BENCH_NODE_MODULES` (a folder
that has bullmq and ioredis) replace it: the `bench` session of noxfile.py sets them. A peer that cannot
be installed (no network, no Node) is left out with a reason; nothing else fails for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PYTHON_PEERS = ("bullmq==3.4.4", "tarsk-redis==0.2.1", "hiredis==3.5.0", "uvloop==0.23.0")
NODE_PEERS = ("bullmq@6.7.0", "ioredis@5.9.2")

_INSTALL_S = 300

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A measured library: how to start its driver."""

    key: str
    label: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])


class PeerMissingError(Exception):
    """A library cannot be measured here; the message gives the reason."""


def cache_folder() -> Path:
    """The folders of the installed peers."""
    named = os.environ.get("GLIDEMQ_BENCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named) if named else Path(home) / "glidemq-bench"


def find_peer(key: str) -> Peer:
    """The peer of that key, installed if it was not; raises `PeerMissingError`."""
    return FINDERS[key]()


def _glidemq() -> Peer:
    if find_spec("glidemq_py") is None:
        raise PeerMissingError("glidemq_py is not importable here")
    return _python_peer("glidemq", "glidemq_py {}", sys.executable, "glidemq-py", "glidemq")


def _glidemq_sync() -> Peer:
    ours = _glidemq()
    command = (*ours.command[:-1], "tests.bench.peers.glidemq_sync")
    return Peer(key="glidemq-sync", label=f"{ours.label}, blocking", command=command)


def _bullmq() -> Peer:
    return _python_peer("bullmq", "bullmq {} (Python)", _peers_python(), "bullmq", "bullmq_py")


def _tarsk() -> Peer:
    return _python_peer("tarsk", "tarsk {}", _peers_python(), "tarsk-redis", "tarsk")


def _tarsk_bare() -> Peer:
    without = {"TARSK_BENCH_RESULTS": "0"}
    return _python_peer("tarsk-bare", "tarsk {}, no results", _peers_python(), "tarsk-redis", "tarsk", without)


def _python_peer(
    key: str,
    label: str,
    python: str,
    distribution: str,
    module: str,
    environment: dict[str, str] | None = None,
) -> Peer:
    script = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    if result.returncode != 0 and key != "glidemq":  # ours may be run from the source tree, not installed
        raise PeerMissingError(f"{distribution} is not installed for {python}")
    return Peer(
        key=key,
        label=label.format(result.stdout.strip()).replace("  ", " ").strip(),
        command=(python, "-m", f"tests.bench.peers.{module}"),
        environment=environment or {},
    )


def _on_uvloop(peer: Peer) -> Peer:
    result = subprocess.run([peer.command[0], "-c", "import uvloop"], capture_output=True, check=False)
    if result.returncode != 0:
        raise PeerMissingError(f"uvloop is not installed for {peer.command[0]}")
    return Peer(
        key=f"{peer.key}-uvloop",
        label=f"{peer.label} on uvloop",
        command=peer.command,
        environment={**peer.environment, "BENCH_UVLOOP": "1"},
    )


def _bullmq_node() -> Peer:
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("Node is not installed")
    modules = _node_modules()
    facts = json.loads((modules / "bullmq" / "package.json").read_text(encoding="utf-8"))
    return Peer(
        key="bullmq-node",
        label=f"BullMQ {facts['version']} (Node)",
        command=(node, str(DRIVERS / "bullmq_node.mjs")),
        environment={"BENCH_NODE_FOLDER": str(modules.parent)},
    )


def _node_modules() -> Path:
    """Folder that holds bullmq and ioredis (without which bullmq 6 cannot connect)."""
    named = Path(os.environ.get("GLIDEMQ_BENCH_NODE_MODULES", ""))
    if all((named / package).is_dir() for package in ("bullmq", "ioredis")):
        return named
    return npm_modules(*NODE_PEERS)


def npm_modules(*packages: str) -> Path:
    """Folder `node_modules` with these packages of npm, installed once into the cache by one of the processes.

    Raises:
        PeerMissingError: npm is not installed, or cannot install them.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise PeerMissingError("npm is not installed")
    folder = cache_folder() / "-".join(("node", *packages)).replace("@", "-").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
            _install([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages], folder)
    return folder / "node_modules"


def _peers_python() -> str:
    """Python of the peers' virtual environment, named after its packages so that it is never stale."""
    named = os.environ.get("GLIDEMQ_BENCH_PEERS_PYTHON")
    if named:
        return named
    pins = "-".join(pin.replace("==", "-") for pin in PYTHON_PEERS)
    folder = cache_folder() / f"py{sys.version_info[0]}.{sys.version_info[1]}-{pins}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], cache_folder())
        _install([str(python), "-m", "pip", "install", "--quiet", *PYTHON_PEERS], folder)
    return str(python)


def _install(command: list[str], folder: Path):
    _run(command, folder)
    (folder / "complete").touch()


def _run(command: list[str], folder: Path):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise PeerMissingError(f"could not be installed within {_INSTALL_S} s") from None
    if done.returncode != 0:
        raise PeerMissingError(f"could not be installed: {done.stderr.strip().splitlines()[-1:] or command}")


FINDERS: dict[str, Callable[[], Peer]] = {
    "glidemq": _glidemq,
    "glidemq-uvloop": lambda: _on_uvloop(_glidemq()),
    "glidemq-sync": _glidemq_sync,
    "bullmq": _bullmq,
    "bullmq-uvloop": lambda: _on_uvloop(_bullmq()),
    "tarsk": _tarsk,
    "tarsk-bare": _tarsk_bare,
    "bullmq-node": _bullmq_node,
}

"""Certificates, and servers with TLS: Debian's redis-server, as the Valkey of the wheel is built without it."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.testing import ServerProcess
from tests.inside import embedded
from tests.server.worker_support import StartServer

__all__ = ["Certificates", "StartTls", "certificates", "start_tls"]

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
"""Options for a new key. RSA takes seconds."""

StartTls = Callable[..., tuple[ServerProcess, int]]


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files by name; `ca`, `server`, `client`, `expired`, `stranger` (self-signed), and `ca_key` and so on."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    @property
    def pair(self) -> str:
        """The options of a client that trusts the authority and has a certificate, for a URL."""
        return f"tls_ca={self.ca}&tls_cert={self.client}&tls_key={self.client_key}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Create certificates of this test run."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed: it makes the certificates of the TLS tests")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str):
        subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)

    def make(name: str, *arguments: str):
        run("req", "-x509", *NEW_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}_key.pem", "-out", f"{name}.pem", *arguments)  # fmt: skip

    signed = ("-CA", "ca.pem", "-CAkey", "ca_key.pem")
    leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
    host = ("-addext", "subjectAltName=DNS:localhost")
    make("ca")
    make("server", *signed, *leaf, *host)
    make("client", *signed, *leaf)
    make("stranger")
    # `req -x509` makes no expired certificate; `x509 -req` does.
    run("req", *NEW_KEY, "-nodes", "-subj", "/CN=expired", *leaf, *host,
        "-keyout", "expired_key.pem", "-out", "expired.csr")  # fmt: skip
    run("x509", "-req", "-in", "expired.csr", *signed, "-days", "-1", "-copy_extensions", "copy", "-out", "expired.pem")
    return Certificates(folder)


@pytest.fixture
def start_tls(private_server: StartServer, certificates: Certificates) -> StartTls:
    """Return `start_tls(tls_auth_clients="no")`, which starts a server and returns it and its TLS port."""

    def start(*, durable: bool = False, **config: Any) -> tuple[ServerProcess, int]:
        port = embedded.free_port()
        settings = {
            "tls_port": port, "tls_cert_file": str(certificates.server), "tls_key_file": str(certificates.server_key),
            "tls_ca_cert_file": str(certificates.ca), "tls_auth_clients": "no", **config,
        }  # fmt: skip
        return private_server("redis", durable=durable, **settings), port

    return start

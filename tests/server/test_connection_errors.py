"""Failed connections: every cause has a typed error with a remedy, in both runtimes."""

import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from glide_shared.exceptions import ClosingError

from glidemq_py import (
    AmbiguousResultError,
    ConnectionOptions,
    GlideMQConnectionError,
    GlideMQValidationError,
    Queue,
    Worker,
)
from glidemq_py._client.connect_errors import explain, scheme_of, tls_context
from glidemq_py.errors import ConnectionRejectedError
from tests.inside import config_of
from tests.server.tls_support import Certificates, StartTls
from tests.server.worker_support import StartServer, with_timeout

Connect = Callable[[Any], Awaitable[None]]
StartServer = StartServer


# -- passwords ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["valkey", "valkey+cluster"])
async def test_missing_password(private_server: StartServer, connect: Connect, scheme: str):
    server = private_server(requirepass="correct-horse")
    with pytest.raises(ConnectionRejectedError, match=re.escape(f"none is given; use {scheme}://user:")):
        await connect(f"{scheme}://{server.host}:{server.port}?connection_timeout=1000")


@pytest.mark.parametrize("scheme", ["valkey", "valkey+cluster"])
@pytest.mark.parametrize(
    ("user", "named"),
    [
        ("", "rejects the password; check it, and"),
        ("app", "rejects user 'app' with this password; check user name and"),
    ],
)
async def test_wrong_password(private_server: StartServer, connect: Connect, scheme: str, user: str, named: str):
    server = private_server(requirepass="correct-horse")
    with pytest.raises(ConnectionRejectedError, match=named) as caught:
        await connect(f"{scheme}://{user}:hunter2@{server.host}:{server.port}?connection_timeout=1000")
    assert "hunter2" not in str(caught.value) + repr(caught.value)


async def test_password_that_is_changed_while_connected(private_server: StartServer, caplog: pytest.LogCaptureFixture):
    server = private_server(requirepass="correct-horse")
    url = f"valkey://:correct-horse@{server.host}:{server.port}?request_timeout=300"
    async with Queue("q", url) as queue:
        await queue.count()
        with server.client() as admin:
            admin.execute("CONFIG", "SET", "requirepass", "battery-staple")
            admin.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            errors = list[BaseException]()
            while not any(isinstance(each, ConnectionRejectedError) for each in errors):
                with pytest.raises(GlideMQConnectionError) as caught:
                    await with_timeout(queue.count())
                errors.append(caught.value)
            assert "rejects the password" in str(errors[-1])
            with pytest.raises(AmbiguousResultError, match="rejects the password"):
                await queue.add("n")
            admin.execute("CONFIG", "SET", "requirepass", "correct-horse")
        while "reachable again" not in caplog.text:
            with suppress(GlideMQConnectionError):
                await with_timeout(queue.count())
    assert caplog.text.count("rejects this client; calls fail") == 1


async def test_worker_does_not_retry_a_rejected_password(private_server: StartServer):
    server = private_server(requirepass="correct-horse")
    worker = Worker("q", print, f"valkey://:wrong@{server.host}:{server.port}")
    with pytest.raises(ConnectionRejectedError, match="password"):
        await worker.start()


# -- the wrong kind of server ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_cluster_url_for_a_standalone_server(url: str, connect: Connect):
    with pytest.raises(
        ConnectionRejectedError, match=r"is standalone, not a cluster node; use valkey:// instead of valkey\+cluster://"
    ):
        await connect(url.replace("valkey://", "valkey+cluster://") + "?connection_timeout=1000")


@pytest.mark.slow
async def test_cluster_url_for_a_standalone_server_with_a_password(private_server: StartServer, connect: Connect):
    server = private_server(requirepass="pass@word")
    with pytest.raises(ConnectionRejectedError, match="is standalone"):
        await connect(f"valkey+cluster://:pass%40word@{server.host}:{server.port}?connection_timeout=1000")


async def test_url_of_a_replica(private_server: StartServer, connect: Connect):
    primary = private_server()
    replica = private_server(replicaof=["127.0.0.1", str(primary.port)])
    with pytest.raises(GlideMQConnectionError, match="is a replica") as caught:
        await connect(replica.url)
    assert not isinstance(caught.value, ConnectionRejectedError)  # it may be promoted, so workers retry


async def test_database_that_does_not_exist(url: str, connect: Connect):
    with pytest.raises(ConnectionRejectedError, match="database 99 does not exist"):
        await connect(f"{url}/99")


async def test_server_with_no_connection_left(private_server: StartServer, connect: Connect):
    server = private_server()
    with server.client() as resp:
        resp.execute("CONFIG", "SET", "maxclients", 1)
        with pytest.raises(GlideMQConnectionError, match="server is not ready: ERR max number of clients") as caught:
            await connect(f"{server.url}?connection_timeout=1000")
    assert not isinstance(caught.value, ConnectionRejectedError)


@contextmanager
def some_other_server(greeting: bytes) -> Iterator[int]:
    """Run a server that replies ``greeting`` to everything and disconnects; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    link, _ = listening.accept()
                except OSError:
                    return
                with link:
                    link.recv(4096)
                    link.sendall(greeting)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_server_of_another_kind(connect: Connect):
    with (
        some_other_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(ConnectionRejectedError, match="not a Valkey or Redis server"),
    ):
        await connect(f"valkey://127.0.0.1:{port}?connection_timeout=1000")


# -- no server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["valkey", "valkeys", "valkey+cluster"])
async def test_refused(connect: Connect, scheme: str):
    with pytest.raises(GlideMQConnectionError, match=r"127\.0\.0\.1:1: connection refused; check that") as caught:
        await connect(f"{scheme}://127.0.0.1:1")
    assert not isinstance(caught.value, ConnectionRejectedError)


async def test_unresolvable_host(connect: Connect):
    with pytest.raises(GlideMQConnectionError, match=r"host name 'no-such-host\.invalid' cannot be resolved"):
        await connect("valkey://no-such-host.invalid")


async def test_no_scheme(connect: Connect):
    with pytest.raises(GlideMQValidationError, match=r"did you mean valkey://127\.0\.0\.1:6379\?"):
        await connect("127.0.0.1:6379")


# -- TLS ------------------------------------------------------------------------------------------------------


async def test_tls_with_a_custom_authority(start_tls: StartTls, certificates: Certificates, connect: Connect):
    _, port = start_tls()
    for connection in (
        f"valkeys://localhost:{port}?tls_ca={certificates.ca}",
        ConnectionOptions([("localhost", port)], tls=True, tls_ca=certificates.ca),
        ConnectionOptions([("localhost", port)], tls=True, tls_ca=certificates.ca.read_bytes()),
        f"valkeys://localhost:{port}?tls_insecure=true",
    ):
        await connect(connection)


def test_comments_in_the_file_of_an_authority_are_skipped(certificates: Certificates):
    authority = "# Főtanúsítvány\n".encode() + certificates.ca.read_bytes()
    options = ConnectionOptions([("localhost", 1)], tls=True, tls_ca=authority)
    assert tls_context(config_of(options)).cert_store_stats()["x509_ca"] == 1


async def test_mutual_tls(start_tls: StartTls, certificates: Certificates, connect: Connect):
    _, port = start_tls(tls_auth_clients="yes")
    pair: Any = {"tls_cert": certificates.client, "tls_key": certificates.client_key}
    contents: Any = {name: path.read_bytes() for name, path in pair.items()}
    for connection in (
        f"valkeys://localhost:{port}?tls_ca={certificates.ca}&tls_cert={certificates.client}"
        f"&tls_key={certificates.client_key}",
        ConnectionOptions([("localhost", port)], tls=True, tls_ca=certificates.ca, **pair),
        ConnectionOptions([("localhost", port)], tls=True, tls_insecure=True, **contents),
    ):
        await connect(connection)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", "requires a client certificate; give tls_cert and tls_key"),
        ("&tls_cert={0.stranger}&tls_key={0.stranger_key}", "rejects the client certificate"),
        ("&tls_cert={0.expired}&tls_key={0.expired_key}", "rejects the client certificate"),
        ("&tls_cert={0.client}&tls_key={0.stranger_key}", r"client certificate .* cannot be used: .*KeyMismatch"),
    ],
)
async def test_rejected_client_certificate(
    start_tls: StartTls, certificates: Certificates, connect: Connect, query: str, problem: str
):
    _, port = start_tls(tls_auth_clients="yes")
    url = f"valkeys://localhost:{port}?connection_timeout=1000&tls_ca={certificates.ca}{query.format(certificates)}"
    with pytest.raises(ConnectionRejectedError, match=problem):
        await connect(url)


@pytest.mark.parametrize("scheme", ["valkeys", "valkeys+cluster"])
@pytest.mark.parametrize("query", ["", "&tls_ca={0.stranger}"])
async def test_untrusted_server(
    start_tls: StartTls, certificates: Certificates, connect: Connect, scheme: str, query: str
):
    _, port = start_tls()
    with pytest.raises(
        ConnectionRejectedError, match=r"not signed by a trusted authority; name the authority: \?tls_ca="
    ):
        await connect(f"{scheme}://localhost:{port}?connection_timeout=1000{query.format(certificates)}")


@pytest.mark.parametrize(
    ("host", "query", "problem"),
    [
        ("localhost", "", "not signed by a trusted authority"),
        ("localhost", "?tls_ca={0.stranger}", "not signed by a trusted authority"),
        ("127.0.0.1", "?tls_ca={0.ca}", "not issued for this host name"),
    ],
)
def test_untrusted_server_that_glide_reports_as_a_timeout(
    start_tls: StartTls, certificates: Certificates, host: str, query: str, problem: str
):
    _, port = start_tls()
    config = config_of(ConnectionOptions.from_url(f"valkeys://{host}:{port}{query.format(certificates)}"))
    error = explain(config, ClosingError("timed out"))
    assert isinstance(error, ConnectionRejectedError)
    assert problem in str(error)


async def test_expired_certificate_of_the_server(start_tls: StartTls, certificates: Certificates, connect: Connect):
    _, port = start_tls(tls_cert_file=str(certificates.expired), tls_key_file=str(certificates.expired_key))
    with pytest.raises(ConnectionRejectedError, match="the server's certificate has expired"):
        await connect(f"valkeys://localhost:{port}?connection_timeout=1000&tls_ca={certificates.ca}")


async def test_certificate_of_another_host(start_tls: StartTls, certificates: Certificates, connect: Connect):
    _, port = start_tls()
    with pytest.raises(ConnectionRejectedError, match="not issued for this host name"):
        await connect(f"valkeys://127.0.0.1:{port}?connection_timeout=1000&tls_ca={certificates.ca}")


@pytest.mark.parametrize("kind", ["", "+cluster"])
async def test_tls_to_a_plain_port(private_server: StartServer, connect: Connect, kind: str):
    url = private_server().url.replace("valkey://", f"valkeys{kind}://")
    hint = f"does not use TLS on this port; use valkey:// instead of valkeys{kind}:// (or tls=False"
    with pytest.raises(ConnectionRejectedError, match=re.escape(hint)):
        await connect(f"{url}?connection_timeout=500&tls_insecure=true")


@pytest.mark.parametrize("kind", ["", "+cluster"])
@pytest.mark.parametrize("auth_clients", ["no", "yes"])
async def test_plain_to_a_tls_port(start_tls: StartTls, connect: Connect, auth_clients: str, kind: str):
    _, port = start_tls(tls_auth_clients=auth_clients)
    hint = f"expects TLS on this port; use valkeys{kind}:// instead of valkey{kind}:// (or tls=True)"
    with pytest.raises(ConnectionRejectedError, match=re.escape(hint)):
        await connect(f"valkey{kind}://localhost:{port}?connection_timeout=1000")


@pytest.mark.slow
async def test_cluster_url_for_a_standalone_server_with_tls(
    start_tls: StartTls, certificates: Certificates, connect: Connect
):
    _, port = start_tls()
    with pytest.raises(ConnectionRejectedError, match=r"use valkeys:// instead of valkeys\+cluster://"):
        await connect(f"valkeys+cluster://localhost:{port}?connection_timeout=1000&tls_ca={certificates.ca}")


@pytest.mark.parametrize("scheme", ["valkey", "valkeys", "valkey+cluster", "valkeys+cluster"])
def test_schemes_of_hints_keep_the_other_half(scheme: str):
    config = config_of(ConnectionOptions.from_url(f"{scheme}://h"))
    assert scheme_of(config) == scheme
    assert scheme_of(config, tls=True) == f"valkeys{'+cluster' * ('+' in scheme)}"
    assert scheme_of(config, tls=False) == f"valkey{'+cluster' * ('+' in scheme)}"
    assert scheme_of(config, cluster=False) == scheme.removesuffix("+cluster")


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("tls_ca", None, "cannot be read: No such file"),
        ("tls_ca", "nonsense", "contains no certificate"),
        ("tls_cert", "nonsense", "contains no certificate"),
        ("tls_key", None, "cannot be read: No such file"),
        ("tls_key", "-----BEGIN CERTIFICATE-----", "contains no private key"),
        ("tls_key", "-----BEGIN ENCRYPTED PRIVATE KEY-----", "is encrypted with a passphrase"),
    ],
)
async def test_unusable_files_are_rejected(
    certificates: Certificates, tmp_path: Path, url: str, connect: Connect, option: str, text: str | None, problem: str
):
    file = tmp_path / "file.pem"
    if text is not None:
        file.write_text(text)
    files = {"tls_ca": certificates.ca, "tls_cert": certificates.client, "tls_key": certificates.client_key}
    query = "&".join(f"{name}={path}" for name, path in {**files, option: file}.items())
    with pytest.raises(GlideMQValidationError, match=problem) as caught:
        await connect(f"{url.replace('valkey://', 'valkeys://')}?{query}")
    assert (caught.value.option, caught.value.value) == (option, str(file))

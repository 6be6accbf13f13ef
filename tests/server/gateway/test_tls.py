"""Tests of TLS: encrypted connections, and a certificate that is replaced while the gateway runs."""

import asyncio
import shutil
import ssl
from pathlib import Path

import msgpack
import pytest

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway import Gateway, server
from tests.server.gateway.wire import packed
from tests.server.tls_support import Certificates


def copied(certificates: Certificates, name: str, folder: Path) -> tuple[str, str]:
    """Copy a certificate and its key to the paths of the gateway."""
    paths = folder / "cert.pem", folder / "key.pem"
    shutil.copyfile(certificates.folder / f"{name}.pem", paths[0])
    shutil.copyfile(certificates.folder / f"{name}_key.pem", paths[1])
    return str(paths[0]), str(paths[1])


def spoil(path: str):
    Path(path).write_text("not a key", encoding="ascii")


async def served(gateway: Gateway) -> bytes:
    """Ping over TLS; return the certificate of the gateway."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    writer.write(packed({"cmd": "Ping"}))
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert msgpack.unpackb(await reader.readexactly(size))["ok"] is True
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def der(certificates: Certificates, name: str) -> bytes:
    pem = (certificates.folder / f"{name}.pem").read_text(encoding="ascii")
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_certificate_is_replaced_while_the_gateway_runs(
    url: str, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cert, key = copied(certificates, "server", tmp_path)
    async with Gateway(url, port=0, tls_cert=cert, tls_key=key) as gateway:
        assert await served(gateway) == der(certificates, "server")
        copied(certificates, "client", tmp_path)
        assert gateway.reload_certificate()
        assert await served(gateway) == der(certificates, "client")
        spoil(key)
        assert not gateway.reload_certificate()
        assert await served(gateway) == der(certificates, "client")


async def test_changed_files_are_noticed(
    url: str, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glidemq_py.gateway.server.LOOK_S", 0.01)
    cert, key = copied(certificates, "server", tmp_path)
    async with Gateway(url, port=0, tls_cert=cert, tls_key=key) as gateway, asyncio.timeout(60):
        copied(certificates, "client", tmp_path)
        while await served(gateway) != der(certificates, "client"):
            pass


async def test_plain_client_is_closed(url: str, certificates: Certificates, tmp_path: Path):
    cert, key = copied(certificates, "server", tmp_path)
    async with Gateway(url, port=0, tls_cert=cert, tls_key=key) as gateway, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(packed({"cmd": "Ping"}))
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        assert b"pong" not in answer
        writer.close()


def test_unusable_files_are_named(certificates: Certificates, tmp_path: Path):
    cert, _ = copied(certificates, "server", tmp_path)
    with pytest.raises(GlideMQValidationError, match="tls_key"):
        server.ServerCertificate(cert, str(tmp_path / "none.pem"))
    with pytest.raises(GlideMQValidationError, match="fits the key"):
        server.ServerCertificate(cert, str(certificates.client_key))

"""HTTPS: with a certificate the server speaks nothing else. The pair in tls/ is for tests alone."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest

from blockwright.tests.api.fake_port import make_folder
from blockwright.tests.api.serve.test_server import FakeCluster, Session
from blockwright.tests.claims import claim

CERT, KEY = Path(__file__).parent / "tls" / "cert.pem", Path(__file__).parent / "tls" / "key.pem"


@claim("TLS is served alone where a certificate is set", of="security")
async def test_only_https_is_spoken(tmp_path: Path) -> None:
    cluster = FakeCluster(make_folder(tmp_path / "tiny"))
    cluster.gate.set()
    session = Session(cluster, tls_cert=str(CERT), tls_key=str(KEY))
    await session.until("ready at https://127.0.0.1:")
    address = session.server.address
    trusted = ssl.create_default_context(cafile=str(CERT))
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{address}/health", ssl=trusted) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.get(f"{address}/health")
        with pytest.raises(aiohttp.ClientError):
            await client.get(address.replace("https", "http") + "/health")
    session.server.stop()
    assert await session.task == 0


@pytest.mark.parametrize(("cert", "key"), [("/none.pem", str(KEY)), (str(CERT), str(CERT)), (__file__, str(KEY))])
async def test_files_that_are_no_pair(tmp_path: Path, cert: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(FakeCluster(make_folder(tmp_path / "tiny")), tls_cert=cert, tls_key=key)
    assert await session.task == 2
    assert f"tls_cert and tls_key: {cert} and {key} cannot be used" in capsys.readouterr().err

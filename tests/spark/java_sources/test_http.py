"""HTTP requests of the key services in Java: limits, redirects, TLS."""

from __future__ import annotations

import base64
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.kms.key_servers import Server, head, whole
from tests.support.spark.java_client import KEYS, JavaClient, JavaError, JavaService

TOKEN = "hvs.hunter2"


@pytest.fixture
def vault(jvm: Any, server: Server, tmp_path: Path) -> JavaClient:
    """Return a client of Vault at the server."""
    (tmp_path / "token").write_text(TOKEN)
    uri = f"hcvault://127.0.0.1:{server.port}/transit?tls=off&token=file:{tmp_path}/token"
    return JavaClient(jvm, uri)


def test_an_answer_of_up_to_a_mebibyte_is_read(vault: JavaClient, server: Server) -> None:
    plain = base64.b64encode(KEYS[0])
    start, end = b'{"data":{"plaintext":"%s"},"x":"' % plain, b'"}'
    filler = b"x" * ((1 << 20) - len(start) - len(end))
    server.answer = whole(start + filler + end)
    assert vault.unwrap("vault:v1:AAAA", "k") == KEYS[0]
    server.answer = whole(start + filler + b"x" + end)
    with pytest.raises(JavaError, match=r"the answer of Vault .* is longer than 1048576 bytes"):
        vault.unwrap("vault:v1:AAAA", "k")


def test_an_answer_that_never_ends_is_cut_off(vault: JavaClient, server: Server) -> None:
    sent: list[int] = []

    def pour(peer: socket.socket) -> None:
        peer.sendall(head(None))
        while sum(sent) < 1 << 30:
            sent.append(peer.send(b"x" * (1 << 16)))

    server.answer = pour
    with pytest.raises(JavaError, match="is longer than 1048576 bytes"):
        vault.wrap(KEYS[0], "k")
    time.sleep(0.2)
    assert sum(sent) < 64 << 20  # what the buffers of both ends take


def test_no_redirect_is_followed(vault: JavaClient, server: Server) -> None:
    elsewhere = Server()
    target = f"Location: http://127.0.0.1:{elsewhere.port}/v1/transit/encrypt/k"
    moved = head(0, target).replace(b"200 OK", b"307 Temporary Redirect")
    server.answer = lambda peer: peer.sendall(moved)
    with pytest.raises(JavaError, match="redirects to another address") as caught:
        vault.wrap(KEYS[0], "k")
    elsewhere.close()
    assert elsewhere.requests == []
    assert TOKEN not in str(caught.value)


def test_no_proxy_stands_between_the_jvm_and_its_own_machine(
    jvm: Any, vault: JavaClient, server: Server
) -> None:
    server.answer = whole(b'{"data":{"plaintext":"%s"}}' % base64.b64encode(KEYS[0]))
    stranger = Server()
    system = jvm.java.lang.System
    system.setProperty("http.proxyHost", "127.0.0.1")
    system.setProperty("http.proxyPort", str(stranger.port))
    system.setProperty("http.nonProxyHosts", "none.example")
    try:
        assert vault.unwrap("vault:v1:AAAA", "k") == KEYS[0]
    finally:
        for name in ("proxyHost", "proxyPort", "nonProxyHosts"):
            system.clearProperty(f"http.{name}")
        stranger.close()
    assert stranger.requests == []


def test_an_answer_that_trickles_is_given_up(jvm: Any, server: Server) -> None:
    sent: list[bytes] = []

    def trickle(peer: socket.socket) -> None:
        peer.sendall(head(1000))
        for _ in range(1000):  # one after another, for longer than any machine takes to give up
            peer.sendall(b"x")
            sent.append(b"x")
            time.sleep(0.1)

    server.answer = trickle
    environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.port}"}
    java = JavaService(jvm, "AwsKms", "aws-kms://?region=r", environment=environment)
    with pytest.raises(JavaError, match="UnavailableException: no credentials for AWS in"):
        java.wrap(KEYS[0], "k")
    assert 0 < len(sent) < 1000

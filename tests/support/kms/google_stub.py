"""A stub of Google Cloud KMS, behind Google's own client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

grpc = pytest.importorskip("grpc")
kms_v1 = pytest.importorskip("google.cloud.kms_v1")

from modcrypt.kms.services.gcp import GcpKms, crc32c, open_gcp  # noqa: E402 (needs both)

RING = "projects/p-1/locations/europe-west3/keyRings/lake"
SERVICE = "google.cloud.kms.v1.KeyManagementService"


@dataclass
class GoogleStub:
    """Encrypt and Decrypt over gRPC on loopback, under one AES key for each name."""

    address: str = ""
    keys: dict[str, AESGCM] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    refuse: tuple[Any, str] | None = None
    alter: Callable[[Any], None] = lambda answer: None

    def encrypt(self, request: Any, context: Any) -> Any:
        key = self._key(request, context)
        nonce = os.urandom(12)
        aad = request.additional_authenticated_data
        data = nonce + key.encrypt(nonce, request.plaintext, aad)
        answer = kms_v1.EncryptResponse(
            name=f"{request.name}/cryptoKeyVersions/1",
            ciphertext=data,
            ciphertext_crc32c=crc32c(data),
            verified_plaintext_crc32c=request.plaintext_crc32c == crc32c(request.plaintext),
            verified_additional_authenticated_data_crc32c=bool(aad)
            and request.additional_authenticated_data_crc32c == crc32c(aad),
        )
        self.alter(answer)
        return answer

    def decrypt(self, request: Any, context: Any) -> Any:
        key = self._key(request, context)
        data, aad = request.ciphertext, request.additional_authenticated_data
        if request.ciphertext_crc32c != crc32c(data) or (
            aad and request.additional_authenticated_data_crc32c != crc32c(aad)
        ):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "checksum")
        try:
            plain = key.decrypt(data[:12], data[12:], aad)
        except (InvalidTag, ValueError):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: verify that ...")
        answer = kms_v1.DecryptResponse(plaintext=plain, plaintext_crc32c=crc32c(plain))
        self.alter(answer)
        return answer

    def _key(self, request: Any, context: Any) -> AESGCM:
        self.calls.append(request)
        if self.refuse is not None:
            context.abort(*self.refuse)
        if request.name not in self.keys:
            context.abort(grpc.StatusCode.NOT_FOUND, "CryptoKey not found.")
        return self.keys[request.name]

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Encrypt": grpc.unary_unary_rpc_method_handler(
                    self.encrypt,
                    kms_v1.EncryptRequest.deserialize,
                    kms_v1.EncryptResponse.serialize,
                ),
                "Decrypt": grpc.unary_unary_rpc_method_handler(
                    self.decrypt,
                    kms_v1.DecryptRequest.deserialize,
                    kms_v1.DecryptResponse.serialize,
                ),
            },
        )


@pytest.fixture
def google() -> Iterator[GoogleStub]:
    stub = GoogleStub(keys={f"{RING}/cryptoKeys/{name}": AESGCM(os.urandom(32)) for name in "ab"})
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((stub.handler(),))
    stub.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield stub
    server.stop(0).wait()


@pytest.fixture
def google_client(google: GoogleStub) -> Iterator[Any]:
    """Return Google's own client connected to the stub."""
    from google.cloud.kms_v1.services.key_management_service.transports import (
        KeyManagementServiceGrpcTransport,
    )

    with grpc.insecure_channel(google.address) as channel:
        transport = KeyManagementServiceGrpcTransport(channel=channel)
        yield kms_v1.KeyManagementServiceClient(transport=transport)


@pytest.fixture
def gcp(google_client: Any) -> GcpKms:
    return open_gcp(f"gcp-kms://{RING}/cryptoKeys/a", client=google_client)

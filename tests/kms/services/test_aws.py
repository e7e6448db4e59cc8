"""AWS KMS: moto's server, which really encrypts, judged by boto3; and stubbed answers."""

from __future__ import annotations

import base64
import datetime
import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import calls as kms
from modcrypt.kms.references import open_kms
from tests.support.cases import each_case
from tests.support.kms.json_server import hanging_up, json_server
from tests.support.kms.key_servers import (
    AWS_KEY_ID,
    AWS_SECRET,
    REGION,
    MotoKms,
    Server,
    error_text,
    leaks,
    whole,
)
from tests.support.kms.server_fixtures import clear_environment

pytest.importorskip("boto3")

import boto3
import botocore.exceptions
from botocore.stub import Stubber

from modcrypt.kms.services import aws
from modcrypt.kms.services.aws import AwsKms, open_aws

KEY = bytes(range(0xC1, 0xD1))
AAD = b"table/part-0"
ANY_REGION = f"aws-kms://?region={REGION}"
KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
ARN = f"arn:aws:kms:{REGION}:111122223333:key/{KEY_ID}"


@pytest.fixture
def key(moto: MotoKms) -> dict[str, Any]:
    """Create a key; return its metadata."""
    metadata: dict[str, Any] = moto.judge().create_key()["KeyMetadata"]
    return metadata


def open_with(environment: dict[str, str]) -> AwsKms:
    """Return a client that several tests can share: it takes boto3 a while to make one."""
    with pytest.MonkeyPatch.context() as patch:
        clear_environment(patch)
        for name, value in environment.items():
            patch.setenv(name, value)
        return open_aws(ANY_REGION)


@pytest.fixture(scope="module")
def shared_client(moto_running: MotoKms) -> AwsKms:
    return open_with(moto_running.environment)


@pytest.fixture
def client(moto: MotoKms, shared_client: AwsKms) -> AwsKms:
    return shared_client


# --- wrapping and unwrapping ---------------------------------------------------------------------


@pytest.mark.parametrize("aad", [b"", b"\x00\xff" * 40], ids=["no aad", "binary"])
def test_boto3_unwraps_what_modcrypt_wrapped_and_the_other_way(
    moto: MotoKms, client: AwsKms, key: dict[str, Any], aad: bytes
) -> None:
    context = {"modcrypt:aad": base64.b64encode(aad).decode()} if aad else {}
    blob = base64.b64decode(client.wrap(KEY, key["Arn"], aad=aad))
    judge = moto.judge()
    assert judge.decrypt(CiphertextBlob=blob, EncryptionContext=context)["Plaintext"] == KEY
    theirs = judge.encrypt(KeyId=key["Arn"], Plaintext=KEY, EncryptionContext=context)
    wrapped = base64.b64encode(theirs["CiphertextBlob"]).decode()
    assert client.unwrap(wrapped, key["Arn"], aad=aad) == KEY


def test_a_key_may_be_asked_for_by_arn_id_alias_and_plain_name(
    moto: MotoKms, client: AwsKms, key: dict[str, Any]
) -> None:
    name = f"lake/{key['KeyId'][:8]}"
    moto.judge().create_alias(AliasName=f"alias/{name}", TargetKeyId=key["KeyId"])
    alias_arn = f"{key['Arn'].rpartition(':')[0]}:alias/{name}"
    names = [key["Arn"], key["KeyId"], f"alias/{name}", name, alias_arn]
    for spelling in names:
        wrapped = client.wrap(KEY, spelling)
        assert [client.unwrap(wrapped, other) for other in names] == [KEY] * 5


@pytest.mark.parametrize(("aad", "other"), [(AAD, b"table/part-1"), (AAD, b""), (b"", AAD)])
def test_another_aad_is_refused(
    client: AwsKms, key: dict[str, Any], aad: bytes, other: bytes
) -> None:
    wrapped = client.wrap(KEY, key["Arn"], aad=aad)
    for ask in (client.unwrap, client.rewrap):
        with pytest.raises(KeyMaterialError, match="other AAD"):
            ask(wrapped, key["Arn"], aad=other)


def test_an_altered_text_is_refused_wherever_a_bit_is_flipped(
    client: AwsKms, key: dict[str, Any]
) -> None:
    """Moto's blobs begin with the id of the key in ASCII: altered, it names none."""
    blob = base64.b64decode(client.wrap(KEY, key["Arn"]))
    for at in range(len(blob)):
        altered = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
        error = KeyAccessDeniedError if at < 36 else KeyMaterialError
        with pytest.raises(error):
            client.unwrap(base64.b64encode(altered).decode(), key["Arn"])


def test_a_blob_of_another_key_is_not_unwrapped_under_the_key_that_it_names(
    moto: MotoKms, client: AwsKms, key: dict[str, Any]
) -> None:
    """KMS says IncorrectKeyException, moto that access is denied."""
    other = moto.judge().create_key()["KeyMetadata"]["Arn"]
    wrapped = client.wrap(KEY, other)
    with pytest.raises(KeyRetrievalError):
        client.unwrap(wrapped, key["Arn"])


def test_every_request_names_the_master_key_and_no_other(
    moto: MotoKms, client: AwsKms, key: dict[str, Any]
) -> None:
    with moto.record_requests() as requests:
        wrapped = client.rewrap(client.wrap(KEY, key["Arn"], aad=AAD), key["Arn"], aad=AAD)
        client.unwrap(wrapped, key["Arn"], aad=AAD)
    named = [
        {value for name, value in request.body.items() if name.endswith("KeyId")}
        for request in requests
    ]
    assert [request.operation for request in requests] == ["Encrypt", "ReEncrypt", "Decrypt"]
    assert named == [{key["Arn"]}] * 3
    assert {"SourceKeyId", "DestinationKeyId"} <= requests[1].body.keys()


@pytest.mark.parametrize(
    "text", ["", "AA*A", "AAA", "A\n==", "caf\u00e9", "A" * 8196, "vault:v1:AAAA"], ids=ascii
)
def test_what_kms_never_wrapped_is_refused_before_anything_is_sent(
    moto: MotoKms, client: AwsKms, text: str
) -> None:
    with moto.record_requests() as requests:
        for ask in (client.unwrap, client.rewrap):
            with pytest.raises(KeyMaterialError, match="not valid base64"):
                ask(text, ARN)
    assert requests == []


# --- names, regions and endpoints ----------------------------------------------------------------


@each_case(
    "name",
    [
        "arn:aws:kms:us-east-1:111122223333:key/" + KEY_ID,
        "arn:aws-cn:kms:cn-north-1:111122223333:key/" + KEY_ID,
        "arn:aws:kms:us-east-1:111122223333:alias/footer",
        "arn:aws:kms:evil.example:111122223333:key/" + KEY_ID,
        "arn:aws:s3:::bucket", "arn:aws:kms::111122223333:key/x", "", "a b", "a\n", "a?b", "a:b",
        "http://127.0.0.1:1/", "https://kms.us-east-1.amazonaws.com/", "..", "\udc80", "a" * 300,
    ],
    ids=ascii,
)  # fmt: skip
def test_a_name_from_a_file_that_leads_elsewhere_is_refused_before_anything_is_sent(
    moto: MotoKms, client: AwsKms, name: str
) -> None:
    wrapped = base64.b64encode(bytes(100)).decode()
    questions: list[Callable[[], object]] = [
        lambda: client.wrap(KEY, name),
        lambda: client.unwrap(wrapped, name),
        lambda: client.rewrap(wrapped, name),
        lambda: client.rotate_key(name),
        lambda: client.disable_key(name),
        lambda: client.destroy_key(name),
    ]
    with moto.record_requests() as requests:
        for ask in questions:
            with pytest.raises(KeyNotFoundError, match=r"another region|not an ARN"):
                ask()
        with pytest.raises(ValueError, match="needs an alias"):
            client.create_key(name)
    assert requests == []


def test_an_arn_of_another_account_than_the_uris_is_refused(
    moto: MotoKms, key: dict[str, Any]
) -> None:
    client = open_aws(f"aws-kms://{key['Arn']}")
    with (
        moto.record_requests() as requests,
        pytest.raises(KeyNotFoundError, match="another account"),
    ):
        client.wrap(KEY, ARN)
    assert requests == []
    assert client.wrap(KEY, key["Arn"])


def test_requests_go_to_the_region_of_the_uri(
    moto: MotoKms, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    client = open_kms(f"aws-kms://{key['Arn']}")
    assert isinstance(client, AwsKms)
    assert client.default_key == key["Arn"]
    with moto.record_requests() as requests:
        client.wrap(KEY, key["Arn"])
    assert [request.region for request in requests] == [REGION]
    assert open_aws("aws-kms://").region == "us-west-1"


@pytest.mark.parametrize(
    ("uri", "default"),
    [
        ("aws-kms://?region=eu-central-1", None),
        (f"aws-kms://{ARN}", ARN),
        (f"aws-kms://{ARN}?region=eu-central-1", ARN),
        (f"aws-kms://{KEY_ID}?region=eu-central-1", KEY_ID),
        ("aws-kms://alias/lake/footer?region=eu-central-1", "alias/lake/footer"),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_the_parts_of_a_uri(uri: str, default: str | None) -> None:
    client = open_aws(uri)
    assert repr(client) == "AwsKms(eu-central-1)"
    assert client.default_key == default
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(client)


@each_case(
    "uri",
    [
        "aws-kms:", f"aws-kms:{ARN}", "aws-kms://eu-central-1", "aws-kms://footer",
        "aws-kms://arn:aws:kms:eu-central-1:1:key/2", f"aws-kms://{ARN}#x", f"aws-kms://{ARN}/..",
        f"aws-kms://{ARN}?region=us-east-1", f"aws-kms://{ARN}?endpoint=http://127.0.0.1",
        "aws-kms://AKIA:Zq9-secret@kms", "aws-kms://",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("bare_environment")
def test_a_uri_of_another_form_or_without_a_region_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="aws-kms") as caught:
        open_aws(uri)
    assert "Zq9" not in error_text(caught.value)


@pytest.mark.usefixtures("bare_environment")
def test_an_endpoint_without_tls_is_taken_on_the_loopback_interface_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for endpoint in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://kms.x"):
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", endpoint)
        assert open_aws(ANY_REGION).region == REGION
    for endpoint in ("http://kms.example", "http://10.0.0.1:1", "http://localhost.example"):
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", endpoint)
        with pytest.raises(ValueError, match="has no TLS"):
            open_aws(ANY_REGION)


def test_a_client_of_boto3_is_used_as_it_is(moto: MotoKms, key: dict[str, Any]) -> None:
    client = open_aws("aws-kms://", client=moto.judge())
    assert client.unwrap(client.wrap(KEY, key["Arn"]), key["Arn"]) == KEY
    with pytest.raises(ValueError, match="names region us-east-1"):
        open_aws("aws-kms://?region=us-east-1", client=moto.judge())


# --- the management of master keys ---------------------------------------------------------------


def test_a_key_is_created_with_an_alias_and_listed(moto: MotoKms, client: AwsKms) -> None:
    judge = moto.judge()
    bare = judge.create_key()["KeyMetadata"]["KeyId"]
    signing = judge.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]
    made = client.create_key("created/footer")
    assert made.id == "alias/created/footer"
    assert made.created is not None
    assert client.unwrap(client.wrap(KEY, "created/footer"), made.id) == KEY
    listed = {key.id: key for key in client.list_keys()}
    assert listed[made.id].enabled
    assert listed[bare].enabled
    assert signing["KeyId"] not in listed
    for again in ("created/footer", "alias/created/footer"):
        with pytest.raises(ValueError, match="already"):
            client.create_key(again)
    for unfit in (ARN, KEY_ID, "alias/aws/s3", ""):
        with pytest.raises(ValueError, match="needs an alias"):
            client.create_key(unfit)


def test_a_rotated_key_unwraps_what_it_wrapped_before_and_rewraps_with_aad(
    moto: MotoKms, client: AwsKms
) -> None:
    """What the rotation changes inside KMS, moto does not do; the requests are AWS's."""
    name = client.create_key("rotated").id
    wrapped = client.wrap(KEY, name, aad=AAD)
    with moto.record_requests() as requests:
        assert client.rotate_key(name).id == name
    assert [request.operation for request in requests] == ["DescribeKey", "RotateKeyOnDemand"]
    assert client.unwrap(wrapped, name, aad=AAD) == KEY
    with moto.record_requests() as requests:
        new = kms.rewrap(client, wrapped, name, AAD)
    assert [request.operation for request in requests] == ["ReEncrypt"]  # the key stays inside
    assert new != wrapped
    assert client.unwrap(new, name, aad=AAD) == KEY
    assert kms.is_current(client, new, name) is None  # KMS doesn't say


def test_a_key_is_disabled_and_destroyed_as_aws_does_it(moto: MotoKms, client: AwsKms) -> None:
    name = client.create_key("shredded").id
    key_id = moto.judge().describe_key(KeyId=name)["KeyMetadata"]["KeyId"]
    with pytest.raises(KeyRetrievalError, match="cannot disable a single version"):
        client.disable_key(name, 1)
    assert client.disable_key(name).enabled is False
    assert moto.judge().describe_key(KeyId=key_id)["KeyMetadata"]["KeyState"] == "Disabled"
    assert [key.enabled for key in client.list_keys() if key.id == name] == [False]
    client.destroy_key(name)
    reported = moto.judge().describe_key(KeyId=key_id)["KeyMetadata"]
    assert reported["KeyState"] == "PendingDeletion"
    left = reported["DeletionDate"] - datetime.datetime.now(datetime.UTC)
    assert left.days in (6, 7)


def test_a_missing_key_is_said_to_be_missing(client: AwsKms, key: dict[str, Any]) -> None:
    wrapped = client.wrap(KEY, key["Arn"])
    for name in ("typo", "alias/typo", KEY_ID, key["Arn"].replace(key["KeyId"], KEY_ID)):
        questions: list[Callable[[], object]] = [
            lambda n=name: client.wrap(KEY, n),  # type: ignore[misc]  # mypy can't infer lambdas with defaults
            lambda n=name: client.unwrap(wrapped, n),  # type: ignore[misc]  # as above
            lambda n=name: client.rotate_key(n),  # type: ignore[misc]  # as above
        ]
        for ask in questions:
            with pytest.raises(KeyNotFoundError, match="does not exist"):
                ask()


# --- malformed answers ---------------------------------------------------------------------------

CALLS: dict[str, Callable[[AwsKms], object]] = {
    "wrap": lambda client: client.wrap(KEY, KEY_ID),
    "unwrap": lambda client: client.unwrap(base64.b64encode(bytes(99)).decode(), KEY_ID),
    "rewrap": lambda client: client.rewrap(base64.b64encode(bytes(99)).decode(), KEY_ID),
    "create": lambda client: client.create_key("footer"),
    "list": lambda client: client.list_keys(),
    "rotate": lambda client: client.rotate_key(KEY_ID),
    "disable": lambda client: client.disable_key(KEY_ID),
    "destroy": lambda client: client.destroy_key(KEY_ID),
}


@pytest.fixture(scope="module")
def answering(moto_running: MotoKms) -> Iterator[tuple[Server, AwsKms]]:
    """Run a server whose answers a test chooses; yield it and a client of it."""
    server = Server()
    endpoint = {"AWS_ENDPOINT_URL_KMS": f"http://127.0.0.1:{server.port}"}
    yield server, open_with(moto_running.environment | endpoint)
    server.close()


@each_case("body", [
    b"", b"<html>", b"null", b"[1]", b'"x"', b"{}", b"[" * 90_000, b"\xff",
    b'{"KeyMetadata":5,"Keys":5,"Aliases":5,"Plaintext":5,"CiphertextBlob":5}',
    b'{"KeyMetadata":{},"Keys":[1],"Aliases":[1],"Plaintext":{},"CiphertextBlob":"%"}',
    b'{"KeyMetadata":{"KeyId":5},"Keys":[{}],"Aliases":[{"TargetKeyId":"x"}]}',
    b'{"KeyMetadata":{"CreationDate":"x"},"Keys":[{"KeyId":5}],"Aliases":[]}',
    b'{"Keys":[],"Aliases":[],"Truncated":true}',
], ids=lambda body: body[:30].decode(errors="replace"))  # fmt: skip
def test_an_answer_that_is_not_of_kms_is_refused(
    answering: tuple[Server, AwsKms], body: bytes
) -> None:
    server, client = answering
    server.answer = whole(body)
    for call in CALLS.values():
        with pytest.raises(KeyRetrievalError) as caught:
            call(client)
        assert type(caught.value) is KeyRetrievalError


# --- stubbed answers -----------------------------------------------------------------------------


def stub_client() -> tuple[Stubber, AwsKms]:
    own = boto3.client(
        "kms", region_name=REGION, aws_access_key_id=AWS_KEY_ID, aws_secret_access_key=AWS_SECRET
    )
    return Stubber(own), open_aws("aws-kms://", client=own)


@each_case(
    ("code", "status", "error"),
    [
        ("AccessDeniedException", 400, KeyAccessDeniedError),
        ("ExpiredTokenException", 400, KeyAccessDeniedError),
        ("UnrecognizedClientException", 400, KeyAccessDeniedError),
        ("InvalidSignatureException", 400, KeyAccessDeniedError),
        ("NotFoundException", 400, KeyNotFoundError),
        ("InvalidArnException", 400, KeyNotFoundError),
        ("DisabledException", 400, KeyDisabledError),
        ("KMSInvalidStateException", 400, KeyDisabledError),
        ("InvalidCiphertextException", 400, KeyMaterialError),
        ("IncorrectKeyException", 400, KeyMaterialError),
        ("ThrottlingException", 400, KmsUnavailableError),
        ("Throttling", 400, KmsUnavailableError),
        ("KMSInternalException", 500, KmsUnavailableError),
        ("DependencyTimeoutException", 503, KmsUnavailableError),
        ("KeyUnavailableException", 500, KmsUnavailableError),
        ("SomethingNew", 502, KmsUnavailableError),
        ("SomethingNew", 429, KmsUnavailableError),
        ("SomethingNew", 400, KeyRetrievalError),
        ("Zq9 <b>", 400, KeyRetrievalError),
        ("InvalidKeyUsageException", 400, KeyRetrievalError),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_stubbed_refusals_give_one_error_that_repeats_no_message(
    code: str, status: int, error: type[Exception]
) -> None:
    """Disabled keys among them, which moto lets decrypt."""
    stub, client = stub_client()
    secret = f"Zq9 {base64.b64encode(KEY).decode()}"
    stub.add_client_error("decrypt", code, secret, status)
    with stub, pytest.raises(error) as caught:
        client.unwrap(base64.b64encode(bytes(99)).decode(), ARN)
    assert caught.value.word == error.word  # type: ignore[attr-defined]  # one of modcrypt's
    throttles = "Throttl" in code or status == 429
    assert getattr(caught.value, "throttled", False) == throttles
    assert caught.value.__context__ is None
    assert "Zq9" not in error_text(caught.value)


@each_case(
    ("raised", "error"),
    [
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), KmsUnavailableError),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url="x"), KmsUnavailableError),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), KmsUnavailableError),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), KmsUnavailableError),
        (botocore.exceptions.SSLError(endpoint_url="x", error="x"), KeyRetrievalError),
        (botocore.exceptions.NoCredentialsError(), KeyAccessDeniedError),
        (
            botocore.exceptions.PartialCredentialsError(provider="x", cred_var="x"),
            KeyAccessDeniedError,
        ),
        (botocore.exceptions.UnauthorizedSSOTokenError(), KeyAccessDeniedError),
        (botocore.exceptions.ParamValidationError(report="x"), KeyRetrievalError),
    ],
    ids=lambda answer: answer.__name__ if isinstance(answer, type) else type(answer).__name__,
)
@pytest.mark.usefixtures("bare_environment")
def test_stubbed_failures_of_boto3_give_the_right_error(
    raised: Exception, error: type[Exception]
) -> None:
    def fail(**_: Any) -> None:
        raise raised

    meta = SimpleNamespace(region_name=REGION, endpoint_url="https://kms.example")
    client = open_aws("aws-kms://", client=SimpleNamespace(encrypt=fail, meta=meta))
    with pytest.raises(error) as caught:
        client.wrap(KEY, ARN)
    assert type(caught.value) is error
    assert caught.value.__context__ is None


@pytest.mark.usefixtures("bare_environment")
def test_a_stubbed_key_whose_alias_is_refused_is_deleted_again() -> None:
    stub, client = stub_client()
    stub.add_client_error("describe_key", "NotFoundException", "", 400)
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    stub.add_response("create_key", {"KeyMetadata": {"KeyId": KEY_ID, "CreationDate": now}})
    stub.add_client_error("create_alias", "AccessDeniedException", "", 400)
    stub.add_response("schedule_key_deletion", {}, {"KeyId": KEY_ID, "PendingWindowInDays": 7})
    with stub, pytest.raises(KeyAccessDeniedError, match="alias/footer"):
        client.create_key("footer")
    stub.assert_no_pending_responses()


@pytest.mark.usefixtures("bare_environment")
def test_stubbed_pages_of_keys_are_all_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def pages(stub: Stubber) -> None:
        ids = [f"{n:08x}{KEY_ID[8:]}" for n in range(4)]
        stub.add_response("list_aliases", {"Aliases": [], "Truncated": False})
        first = [{"KeyId": key_id} for key_id in ids[:2]]
        second = [{"KeyId": key_id} for key_id in ids[2:]]
        stub.add_response("list_keys", {"Keys": first, "Truncated": True, "NextMarker": "m"})
        stub.add_response("list_keys", {"Keys": second, "Truncated": False}, {"Marker": "m"})
        for key_id in ids:
            manager = "AWS" if key_id == ids[3] else "CUSTOMER"
            reported = {"KeyId": key_id, "KeyManager": manager, "KeySpec": "SYMMETRIC_DEFAULT"}
            stub.add_response("describe_key", {"KeyMetadata": reported | {"KeyState": "Enabled"}})

    stub, client = stub_client()
    pages(stub)
    with stub:
        assert len(client.list_keys()) == 3
    stub, client = stub_client()
    pages(stub)
    monkeypatch.setattr(aws, "MAX_LISTED", 3)
    with stub, pytest.raises(KeyRetrievalError, match="more than 3"):
        client.list_keys()


# --- a service that fails ------------------------------------------------------------------------


def test_a_service_that_throttles_is_asked_again(
    moto: MotoKms, client: AwsKms, key: dict[str, Any], waits: list[float]
) -> None:
    """By modcrypt alone: boto3, which would retry as well, is set not to."""
    moto.failing = 99
    with moto.record_requests() as requests, pytest.raises(KmsUnavailableError, match="Throttling"):
        kms.wrap(client, KEY, key["Arn"])
    assert len(requests) == len(waits) + 1 > 2
    moto.failing = 0
    kms.wrap(client, KEY, key["Arn"])
    moto.failing = 3
    assert kms.unwrap(client, kms.wrap(client, KEY, key["Arn"]), key["Arn"]) == KEY


def test_a_service_that_is_not_there_is_unavailable(
    moto: MotoKms, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{closed.getsockname()[1]}")
        client = open_aws(ANY_REGION)
        with pytest.raises(KmsUnavailableError, match="EndpointConnectionError") as caught:
            kms.wrap(client, KEY, ARN)
    assert len(waits) > 1
    assert not leaks(error_text(caught.value), KEY, AWS_SECRET.encode())


@pytest.mark.usefixtures("moto")
def test_a_connection_that_ends_in_the_handshake_of_tls_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    with hanging_up() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"https://127.0.0.1:{port}")
        with pytest.raises(KmsUnavailableError, match="ended the TLS handshake"):
            kms.wrap(open_aws(ANY_REGION), KEY, ARN)
    assert len(waits) > 1


def test_missing_credentials_are_said(moto: MotoKms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(KeyAccessDeniedError, match="AWS_PROFILE"):
        open_aws(ANY_REGION).wrap(KEY, ARN)


# --- threads and processes -----------------------------------------------------------------------


def test_a_forked_process_does_not_share_its_parents_connection(
    moto: MotoKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    with json_server() as server:  # which keeps connections, as AWS does
        server.answer = lambda request: (200, {"CiphertextBlob": "AAAA", "KeyId": ARN})
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", server.address)
        client = open_aws(ANY_REGION)
        client.wrap(KEY, ARN)
        child = os.fork()
        if child == 0:
            os._exit(0 if client.wrap(KEY, ARN) else 1)
        assert os.waitpid(child, 0)[1] == 0
        client.wrap(KEY, ARN)
    first, in_child, last = (request.port for request in server.requests)
    assert first == last != in_child


def test_threads_get_their_own_keys_back(client: AwsKms, key: dict[str, Any]) -> None:
    start = threading.Barrier(8)

    def work(n: int) -> bool:
        plain = bytes([n]) * 32
        start.wait()
        found = [
            client.unwrap(client.wrap(plain, key["Arn"], aad=plain), key["Arn"], aad=plain)
            for _ in range(5)
        ]
        return found == [plain] * 5

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# --- secrets -------------------------------------------------------------------------------------


def test_no_key_and_no_credential_is_logged_though_boto3_alone_would(
    moto: MotoKms, key: dict[str, Any], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """At level DEBUG botocore logs requests and answers, bodies and session tokens included."""
    session = "Session7Token/" + "Q" * 40
    monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    caplog.set_level(logging.DEBUG)
    client = open_aws(ANY_REGION)
    wrapped = client.wrap(KEY, key["Arn"], aad=AAD)
    assert client.unwrap(wrapped, key["Arn"], aad=AAD) == KEY
    client.rewrap(wrapped, key["Arn"], aad=AAD)
    with pytest.raises(KeyMaterialError) as caught:
        client.unwrap(wrapped, key["Arn"])
    secrets = KEY, AWS_SECRET.encode(), session.encode()
    assert any(record.name.startswith("botocore") for record in caplog.records)
    shown = [caplog.text, error_text(caught.value), repr(client), str(client)]
    shown += [repr(record.args) for record in caplog.records]
    assert not leaks("\n".join(shown), *secrets)

    caplog.clear()
    judge = moto.judge()  # anybody else's client logs as ever
    judge.decrypt(CiphertextBlob=judge.encrypt(KeyId=key["Arn"], Plaintext=KEY)["CiphertextBlob"])
    assert leaks(caplog.text, KEY)


def test_a_failed_request_is_not_logged_either(
    moto: MotoKms, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    with pytest.raises(KmsUnavailableError):
        open_aws(ANY_REGION).wrap(KEY, ARN)
    with pytest.raises(KeyRetrievalError, match="ParamValidationError") as caught:
        open_aws(ANY_REGION).wrap([KEY], ARN)  # type: ignore[arg-type]  # a caller's mistake
    reported = caplog.text + error_text(caught.value)
    assert not leaks(reported, KEY)


@pytest.mark.parametrize("region", ["evil.example", "me@evil.example", "eu-central-1/", "x y"])
def test_a_region_that_is_a_host_is_refused(region: str) -> None:
    with pytest.raises(ValueError, match="the region is not the name of one") as caught:
        open_aws(f"aws-kms://?region={region}")
    assert type(caught.value) is ValueError


@pytest.mark.usefixtures("bare_environment")
def test_an_error_about_the_region_names_the_variable_that_boto3_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="AWS_DEFAULT_REGION"):
        open_aws("aws-kms://")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    assert open_aws("aws-kms://").region == REGION


@each_case(
    ("config", "error"),
    [
        ("[default]\nrole_arn = x\nsource_profile = missing\n", ValueError),
        ("[default]\ncredential_process = /Zq9/missing\n", ValueError),
        ("[default]\ncredential_process = echo Zq9\n", ValueError),
        ("[default]\ncredential_process = false\n", KeyAccessDeniedError),
        ("no section\n", ValueError),
        ("[default]\nrole_arn = x\nweb_identity_token_file = Zq9\n", KeyAccessDeniedError),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_settings_that_boto3_cannot_use_are_named(
    config: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    with pytest.raises(error, match="AWS_PROFILE") as caught:
        open_aws(ANY_REGION).wrap(KEY, ARN)
    assert "Zq9" not in error_text(caught.value)


@pytest.mark.usefixtures("bare_environment")
def test_a_profile_that_does_not_exist_is_an_error_of_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(ValueError, match=r"ProfileNotFound.*AWS_PROFILE"):
        open_aws(ANY_REGION)


# --- aliases that are re-pointed -----------------------------------------------------------------


@pytest.fixture
def alias(moto: MotoKms) -> tuple[str, str, Callable[[str], None]]:
    """Create an alias of a key; return it, another key's ARN and a function that re-points it."""
    judge = moto.judge()
    old, new = (judge.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    name = f"alias/re-pointed-{old[-12:]}"
    judge.create_alias(AliasName=name, TargetKeyId=old)
    return name, new, lambda arn: judge.update_alias(AliasName=name, TargetKeyId=arn)


@each_case("aad", [b"", AAD], ids=["no aad", "aad"])
def test_keys_open_after_their_alias_was_re_pointed(
    moto: MotoKms, client: AwsKms, alias: tuple[str, str, Callable[[str], None]], aad: bytes
) -> None:
    name, new, point_to = alias
    wrapped = kms.wrap(client, KEY, name, aad)
    point_to(new)
    assert kms.unwrap(client, wrapped, name, aad) == KEY
    moved = kms.rewrap(client, wrapped, name, aad)
    assert kms.unwrap(client, moved, new, aad) == KEY
    with pytest.raises(KeyRetrievalError):
        kms.unwrap(client, wrapped, new, aad)  # an ARN is exactly one key
    with pytest.raises(KeyRetrievalError):
        kms.unwrap(client, wrapped, name, b"other")


@each_case(
    ("used", "accepted"),
    [
        (ARN, True),
        (ARN.replace("111122223333", "999988887777"), False),
        (ARN.replace(REGION, "us-east-1"), False),
        (KEY_ID, False),
    ],
)
@pytest.mark.usefixtures("bare_environment")
def test_only_a_key_of_the_aliass_account_and_region_opens_in_its_place(
    used: str, accepted: bool
) -> None:
    """An attacker's account may let everybody decrypt with his key."""
    stub, client = stub_client()
    stub.add_client_error("decrypt", "IncorrectKeyException", "x", 400)
    stub.add_response("decrypt", {"KeyId": used, "Plaintext": KEY})
    metadata = {"KeyId": KEY_ID, "Arn": ARN.replace(KEY_ID, "0" * 8 + KEY_ID[8:])}
    stub.add_response("describe_key", {"KeyMetadata": metadata})
    wrapped = base64.b64encode(bytes(99)).decode()
    with stub:
        if accepted:
            assert client.unwrap(wrapped, "lake") == KEY
        else:
            with pytest.raises(KeyMaterialError, match="another account or region") as caught:
                client.unwrap(wrapped, "lake")
            assert not leaks(error_text(caught.value), KEY)

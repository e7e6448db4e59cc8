"""AWS KMS in Java: moto's server, judged by modcrypt's Python and by boto3; hostile answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.kms.key_servers import (
    AWS_KEY_ID,
    AWS_SECRET,
    REGION,
    MotoKms,
    Server,
    head,
    leaks,
    whole,
)
from tests.support.spark.java_client import KEYS, JavaError, JavaService

pytest.importorskip("boto3")

from modcrypt.kms.references import open_kms

URI = f"aws-kms://?region={REGION}"
KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
ARN = f"arn:aws:kms:{REGION}:111122223333:key/{KEY_ID}"
TOKEN = "session/token+hunter2=="


@pytest.fixture
def key(moto: MotoKms) -> dict[str, Any]:
    """Create a key with the alias `alias/lake`; return its metadata."""
    judge = moto.judge()
    metadata: dict[str, Any] = judge.create_key()["KeyMetadata"]
    if any(alias["AliasName"] == "alias/lake" for alias in judge.list_aliases()["Aliases"]):
        judge.delete_alias(AliasName="alias/lake")
    judge.create_alias(AliasName="alias/lake", TargetKeyId=metadata["KeyId"])
    return metadata


@pytest.fixture
def stub(jvm: Any, server: Server) -> JavaService:
    """Return a client of a server whose answers a test determines."""
    environment = {
        "AWS_ENDPOINT_URL_KMS": f"http://127.0.0.1:{server.port}/",
        "AWS_ACCESS_KEY_ID": AWS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
    }
    return JavaService(jvm, "AwsKms", URI, environment=environment)


def answer_with(**members: Any) -> Callable[[Any], object]:
    return whole(json.dumps(members).encode())


def refuse(code: str, status: str = "400 Bad Request") -> Callable[[Any], object]:
    body = json.dumps({"__type": code, "message": f"{TOKEN} {AWS_SECRET}"}).encode()
    return lambda peer: peer.sendall(
        head(len(body)).replace(b"200 OK", status.encode()) + body,
    )


# --- both ways -----------------------------------------------------------------------------------


@pytest.mark.parametrize("aad", [b"", "lake-ä".encode()])
def test_java_and_python_unwrap_each_others_keys(
    jvm: Any, moto: MotoKms, key: dict[str, Any], aad: bytes
) -> None:
    for uri in (URI, f"aws-kms://{key['Arn']}", f"aws-kms://alias/lake?region={REGION}"):
        java = JavaService(jvm, "AwsKms", uri, aad, moto.environment)
        python = open_kms(uri)
        for master in (key["Arn"], key["KeyId"], "alias/lake", "lake"):
            for data in KEYS:
                assert python.unwrap(java.wrap(data, master), master, aad=aad) == data
            assert java.unwrap(python.wrap(KEYS[0], master, aad=aad), master) == KEYS[0]
    other = JavaService(jvm, "AwsKms", URI, b"another lake", moto.environment)
    with pytest.raises(JavaError, match=r"InvalidCiphertextException: the wrapped key does not"):
        other.unwrap(java.wrap(KEYS[0], "lake"), "lake")


def test_requests_are_those_of_python(jvm: Any, moto: MotoKms, key: dict[str, Any]) -> None:
    java = JavaService(jvm, "AwsKms", URI, b"lake", moto.environment)
    with moto.record_requests() as requests:
        wrapped = java.wrap(KEYS[0], "lake")
        java.unwrap(wrapped, "lake")
        python = open_kms(URI)
        python.wrap(KEYS[0], "lake", aad=b"lake")
        python.unwrap(wrapped, "lake", aad=b"lake")
    assert requests[:2] == requests[2:]


@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_signature_is_that_of_botocore(jvm: Any, server: Server, token: str) -> None:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    endpoint = f"http://127.0.0.1:{server.port}"
    server.answer = answer_with(KeyId=ARN, CiphertextBlob="AAAA")
    java = JavaService(jvm, "AwsKms", URI, b"lake", {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": AWS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": AWS_SECRET, "AWS_SESSION_TOKEN": token,
    })  # fmt: skip
    assert java.wrap(KEYS[0], ARN) == "AAAA"
    first, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = first.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    assert headers.get("x-amz-security-token", "") == token
    # The judge signs the same request at the same time.
    sent = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - sent).total_seconds()) < 60
    request = AWSRequest("POST", f"{endpoint}/", headers={
        "Content-Type": headers["content-type"], "X-Amz-Target": headers["x-amz-target"],
    }, data=body)  # fmt: skip
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.context["timestamp"] = headers["x-amz-date"]
    judge = SigV4Auth(Credentials(AWS_KEY_ID, AWS_SECRET, token or None), "kms", REGION)
    canonical = judge.canonical_request(request)
    signature = judge.signature(judge.string_to_sign(request, canonical), request)
    assert headers["authorization"].endswith(f", Signature={signature}")
    assert f"Credential={judge.scope(request)}," in headers["authorization"]


# --- refusals ------------------------------------------------------------------------------------


def test_kms_refuses_and_java_says_why(jvm: Any, moto: MotoKms, key: dict[str, Any]) -> None:
    java = JavaService(jvm, "AwsKms", URI, environment=moto.environment)
    with pytest.raises(JavaError, match=r"answered NotFoundException: the key does not exist"):
        java.wrap(KEYS[0], "nobody")
    moto.failing = 1
    with pytest.raises(JavaError, match=r"UnavailableException.* answered ThrottlingException"):
        java.wrap(KEYS[0], "lake")


@pytest.mark.parametrize(
    ("code", "status", "match"),
    [
        ("DisabledException", "400 Bad Request", "KeyAccessDenied.*: the key is disabled"),
        ("AccessDeniedException", "400 Bad Request", "KeyAccessDeniedException"),
        ("com.amazonaws.kms#ExpiredTokenException", "400 Bad Request", "KeyAccessDenied"),
        ("InvalidSignatureException", "400 Bad Request", "KeyAccessDeniedException"),
        ("IncorrectKeyException", "400 Bad Request", "ParquetCrypto.*does not unwrap"),
        ("KMSInternalException", "500 Internal Server Error", "UnavailableException"),
        ("what?", "503 Slow Down", "UnavailableException.* answered an unknown error"),
        (AWS_SECRET, "400 Bad Request", "ParquetCrypto.*answered an unknown error"),
        ("x", "301 Moved Permanently", "ParquetCrypto.*redirects to another address"),
    ],
)
def test_an_error_repeats_no_more_than_its_code(
    stub: JavaService, server: Server, code: str, status: str, match: str
) -> None:
    server.answer = refuse(code, status)
    with pytest.raises(JavaError, match=match) as caught:
        stub.unwrap("AAAA", ARN)
    assert leaks(str(caught.value), AWS_SECRET.encode(), TOKEN.encode()) == []


@pytest.mark.parametrize(
    ("body", "match"), [
    (b"[]", "JSON"),
    (json.dumps({"KeyId": ARN[:-1] + "c", "Plaintext": "AAAA"}).encode(), "KeyId"),
    (json.dumps({"KeyId": ARN.replace("eu-", "us-"), "Plaintext": "AAAA"}).encode(),
                  "KeyId"),
    (b'{"Plaintext":"AAAA"}', "KeyId"),
    (json.dumps({"KeyId": ARN}).encode(), "Plaintext"),
    (json.dumps({"KeyId": ARN, "Plaintext": "!"}).encode(), "Plaintext"),
    (json.dumps({"KeyId": ARN, "Plaintext": "AAAA"}).replace("{", '{"KeyId":"",').encode(),
           "JSON"),
    (b'{"x":"' + b"x" * (1 << 20) + b'"}', "is longer than 1048576 bytes"),
])  # fmt: skip
def test_a_foreign_answer_unwraps_nothing(
    stub: JavaService, server: Server, body: bytes, match: str
) -> None:
    server.answer = whole(body)
    with pytest.raises(JavaError, match=match):
        stub.unwrap("AAAA", ARN)


def test_an_oversized_blob_is_not_stored(stub: JavaService, server: Server) -> None:
    blob = base64.b64encode(bytes(6145)).decode()
    server.answer = answer_with(KeyId=ARN, CiphertextBlob=blob)
    with pytest.raises(JavaError, match="CiphertextBlob is missing or malformed"):
        stub.wrap(KEYS[0], ARN)
    for wrapped in (blob, "", "no base64"):
        with pytest.raises(JavaError, match="not valid base64, or exceeds 6144 bytes"):
            stub.unwrap(wrapped, ARN)


@pytest.mark.parametrize(
    "master",
    [
        "../x", "alias/../x", "", "a b", "x" * 300, "alias/", "arn:aws:kms:", ARN + "\n",
        ARN.replace(REGION, "us-east-1"), f"{ARN}/x", "http://127.0.0.1/", "a\r\nHost: x",
    ],
)  # fmt: skip
def test_a_forged_id_leads_to_no_request(stub: JavaService, server: Server, master: str) -> None:
    for ask in (lambda: stub.wrap(KEYS[0], master), lambda: stub.unwrap("AAAA", master)):
        with pytest.raises(JavaError, match=r"is not an ARN, id, alias|is in another region"):
            ask()
    assert server.requests == []


def test_a_uri_with_an_arn_excludes_other_accounts(jvm: Any, moto: MotoKms) -> None:
    java = JavaService(jvm, "AwsKms", f"aws-kms://{ARN}", environment=moto.environment)
    with pytest.raises(JavaError, match="is in another account than the key in the URI"):
        java.wrap(KEYS[0], ARN.replace("111122223333", "444455556666"))


# --- URIs and environment ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "environment", "match"),
    [
        ("aws-kms:alias/x", {}, "the URI of a key in AWS KMS is"),
        ("aws-kms://lake?region=r", {}, "the URI of a key in AWS KMS is"),
        ("aws-kms://?region=r#x", {}, "the URI of a key in AWS KMS is"),
        ("aws-kms://?region=r&key=hunter2", {}, "takes NAME=VALUE, each name once: region"),
        ("aws-kms://", {}, "no region"),
        ("aws-kms://?region=evil.example/", {}, "no region"),
        ("aws-kms://?region=us-iso-east-1", {}, "set AWS_ENDPOINT_URL to"),
        (f"aws-kms://{ARN}?region=other-1", {}, "the region in the ARN and region= differ"),
        (URI, {"AWS_ENDPOINT_URL_KMS": "http://kms.example"}, "AWS_ENDPOINT_URL_KMS must be https"),
        (URI, {"AWS_ENDPOINT_URL": "https://u:hunter2@kms.example"}, "AWS_ENDPOINT_URL must be"),
        (URI, {"AWS_ENDPOINT_URL": "http://127.0.0.1.example"}, "AWS_ENDPOINT_URL must be https"),
    ],
)
def test_an_invalid_uri_or_endpoint_is_refused(
    jvm: Any, uri: str, environment: dict[str, str], match: str
) -> None:
    with pytest.raises(JavaError, match=match) as caught:
        JavaService(jvm, "AwsKms", uri, environment=environment)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "missing", [{}, {"AWS_SECRET_ACCESS_KEY": ""}, {"AWS_SESSION_TOKEN": "a\r\nb"}]
)
def test_missing_or_malformed_credentials_are_no_access(
    jvm: Any, moto: MotoKms, missing: dict[str, str]
) -> None:
    environment = {**moto.environment, **missing}
    if not missing:
        del environment["AWS_ACCESS_KEY_ID"]
    java = JavaService(jvm, "AwsKms", URI, environment=environment)
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*credentials for AWS") as caught:
        java.wrap(KEYS[0], "lake")
    assert leaks(str(caught.value), AWS_SECRET.encode()) == []


# --- aliases that are re-pointed -----------------------------------------------------------------


def test_keys_open_after_their_alias_was_re_pointed(
    jvm: Any, moto: MotoKms, key: dict[str, Any]
) -> None:
    java = JavaService(jvm, "AwsKms", URI, b"lake", moto.environment)
    wrapped = java.wrap(KEYS[0], "lake")
    new = moto.judge().create_key()["KeyMetadata"]["Arn"]
    moto.judge().update_alias(AliasName="alias/lake", TargetKeyId=new)
    assert java.unwrap(wrapped, "lake") == KEYS[0]
    assert java.unwrap(wrapped, key["Arn"]) == KEYS[0]
    with pytest.raises(JavaError):
        java.unwrap(wrapped, new)  # an ARN is exactly one key


@pytest.mark.parametrize(
    ("used", "accepted"),
    [
        (ARN, True),
        (ARN.replace("111122223333", "999988887777"), False),
        (ARN.replace(REGION, "us-east-1"), False),
        (KEY_ID, False),
        (None, False),
    ],
)
def test_only_a_key_of_the_aliass_account_and_region_opens_in_its_place(
    stub: JavaService, server: Server, used: str | None, accepted: bool
) -> None:
    decrypted = answer_with(KeyId=used, Plaintext=base64.b64encode(KEYS[0]).decode())
    answers = [
        refuse("IncorrectKeyException"),
        decrypted,
        answer_with(KeyMetadata={"Arn": ARN.replace(KEY_ID, "0" * 8 + KEY_ID[8:])}),
    ]
    server.answer = lambda peer: answers.pop(0)(peer)
    if accepted:
        assert stub.unwrap("AAAA", "lake") == KEYS[0]
    else:
        with pytest.raises(JavaError, match="another account or region than the alias"):
            stub.unwrap("AAAA", "lake")

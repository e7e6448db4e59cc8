"""AWS's credentials in Java: every place that may have them, in AWS's order."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.kms.json_server import JsonRequest, JsonServer
from tests.support.kms.key_servers import REGION, leaks
from tests.support.spark.java_client import KEYS, JavaError, JavaService

URI = f"aws-kms://?region={REGION}"
ARN = f"arn:aws:kms:{REGION}:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
SECRET, TOKEN = "hunter2/secret+key", "hunter3/session=="
ROLES = "/latest/meta-data/iam/security-credentials/"


def expires_in(**duration: float) -> str:
    return (datetime.now(UTC) + timedelta(**duration)).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(name: str, **duration: float) -> dict[str, str]:
    """Return a temporary key as a container agent or the metadata service does."""
    return {"Code": "Success", "AccessKeyId": name, "SecretAccessKey": SECRET, "Token": TOKEN,
            "Expiration": expires_in(**(duration or {"hours": 1}))}  # fmt: skip


def sts_answer(name: str) -> str:
    return (
        '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        "<AssumeRoleWithWebIdentityResult><Credentials>"
        f"<AccessKeyId>{name}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        f"<SessionToken>{TOKEN}</SessionToken><Expiration>{expires_in(hours=1)}</Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    )


def respond(request: JsonRequest) -> tuple[int, Any]:
    """Answer as KMS, STS, a container agent and the metadata service."""
    if "x-amz-target" in request.headers:
        return 200, {"KeyId": ARN, "CiphertextBlob": "AAAA"}
    answers: dict[tuple[str, str], Any] = {
        ("POST", "/"): sts_answer("FROMSTS"),
        ("GET", "/creds?x=%20"): key_of("FROMCONTAINER"),
        ("PUT", "/latest/api/token"): "metadata-token",
        ("GET", ROLES): "lake-role\n",
        ("GET", f"{ROLES}lake-role"): key_of("FROMINSTANCE"),
    }
    found = answers.get((request.method, request.path))
    return (404, {}) if found is None else (200, found)


@pytest.fixture
def clouds(json_service: JsonServer) -> JsonServer:
    json_service.answer = respond
    return json_service


Opener = Callable[..., JavaService]


@pytest.fixture
def open_java(jvm: Any, clouds: JsonServer) -> Opener:
    """Return a function that opens AWS KMS in Java with an environment."""

    def start(**environment: str) -> JavaService:
        found = {
            "AWS_ENDPOINT_URL": clouds.address,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{clouds.address}/",
            **environment,
        }
        return JavaService(jvm, "AwsKms", URI, environment=found)

    return start


@pytest.fixture
def places(clouds: JsonServer, tmp_path: Path) -> dict[str, str]:
    """Return variables that name every place, each with another key."""
    (tmp_path / "token").write_text("eyJ.identity\n")
    (tmp_path / "credentials").write_text(
        "# comment\n[other]\naws_access_key_id = FROMOTHER\naws_secret_access_key=x\n"
        f"[default]\naws_access_key_id=FROMFILE\naws_secret_access_key = {SECRET}\n"
    )
    return {
        "AWS_ACCESS_KEY_ID": "FROMVARIABLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/lake",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{clouds.address}/creds?x=%20",
    }


def signer(request: JsonRequest) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def test_the_first_place_with_credentials_counts(
    open_java: Opener, clouds: JsonServer, places: dict[str, str]
) -> None:
    for name, expected in (
        ("", "FROMVARIABLE"),
        ("AWS_ACCESS_KEY_ID", "FROMSTS"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "FROMFILE"),
        ("AWS_SHARED_CREDENTIALS_FILE", "FROMCONTAINER"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "FROMINSTANCE"),
    ):
        places.pop(name, None)
        open_java(**places).wrap(KEYS[0], ARN)
        assert signer(clouds.requests[-1]) == expected
        temporary = expected not in ("FROMVARIABLE", "FROMFILE")
        found = clouds.requests[-1].headers.get("x-amz-security-token")
        assert found == (TOKEN if temporary else None)


def test_a_web_identity_assumes_its_role(
    open_java: Opener, clouds: JsonServer, places: dict[str, str]
) -> None:
    del places["AWS_ACCESS_KEY_ID"]
    java = open_java(**places, AWS_ROLE_SESSION_NAME="night run")
    for _ in range(2):
        java.wrap(KEYS[0], ARN)
    asked, *others = clouds.requests
    assert dict(urllib.parse.parse_qsl(asked.body.decode(), strict_parsing=True)) == {
        "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15",
        "RoleArn": places["AWS_ROLE_ARN"], "RoleSessionName": "night run",
        "WebIdentityToken": "eyJ.identity",
    }  # fmt: skip
    assert "authorization" not in asked.headers
    assert len(others) == 2  # one key serves both


def test_motos_sts_gives_a_web_identity_a_key(jvm: Any, tmp_path: Path) -> None:
    pytest.importorskip("moto")
    from tests.support.object_store import object_store

    (tmp_path / "token").write_text("eyJ.identity")
    with object_store() as running:
        java = JavaService(jvm, "AwsKms", URI, environment={
            "AWS_ENDPOINT_URL": running.endpoint,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/lake",
        })  # fmt: skip
        with pytest.raises(JavaError, match="NotFoundException: the key does not exist"):
            java.wrap(KEYS[0], "nobody")  # KMS has accepted the key


def test_a_profile_is_the_one_that_is_named(
    open_java: Opener, clouds: JsonServer, places: dict[str, str], tmp_path: Path
) -> None:
    file = {"AWS_SHARED_CREDENTIALS_FILE": places["AWS_SHARED_CREDENTIALS_FILE"]}
    open_java(**file, AWS_PROFILE="other").wrap(KEYS[0], ARN)
    assert signer(clouds.requests[-1]) == "FROMOTHER"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id=FROMHOME\naws_secret_access_key={SECRET}\n"
        f"aws_session_token={TOKEN}\n[role]\naws_access_key_id=A\naws_secret_access_key=B\n"
        "role_arn=x\n[half]\naws_access_key_id=A\n"
    )
    open_java(HOME=str(tmp_path)).wrap(KEYS[0], ARN)
    assert signer(clouds.requests[-1]) == "FROMHOME"
    before = len(clouds.requests)
    for name in ("role", "half", "missing"):  # the instance may have another identity
        with pytest.raises(JavaError, match=r"KeyAccessDenied.*profile .* has no access key in"):
            open_java(HOME=str(tmp_path), AWS_PROFILE=name).wrap(KEYS[0], ARN)
    assert len(clouds.requests) == before


def test_a_container_sends_its_token(open_java: Opener, clouds: JsonServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    place = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{clouds.address}/creds?x=%20"}
    for more, expected in (
        ({}, None),
        ({"AWS_CONTAINER_AUTHORIZATION_TOKEN": "Basic abc"}, "Basic abc"),
        ({"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}, "from-file"),
    ):
        open_java(**place, **more).wrap(KEYS[0], ARN)
        assert clouds.requests[-2].headers.get("authorization") == expected
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*is not that of a header") as caught:
        open_java(**place, AWS_CONTAINER_AUTHORIZATION_TOKEN="hunter2\r\nx").wrap(KEYS[0], ARN)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FULL", "http://evil.example/"), ("FULL", "http://127.0.0.1.evil.example/"),
        ("FULL", "http://127.0.0.1@evil.example/"), ("FULL", "ftp://127.0.0.1/"),
        ("FULL", "https://127.0.0.1/a b"), ("RELATIVE", "@evil.example/"),
        ("RELATIVE", ".evil.example/"), ("RELATIVE", "/%zz"),
    ],
)  # fmt: skip
def test_a_containers_token_goes_to_no_stranger(
    open_java: Opener, clouds: JsonServer, name: str, value: str
) -> None:
    java = open_java(**{f"AWS_CONTAINER_CREDENTIALS_{name}_URI": value},
                     AWS_CONTAINER_AUTHORIZATION_TOKEN=TOKEN)  # fmt: skip
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*AWS_CONTAINER_CREDENTIALS_"):
        java.wrap(KEYS[0], ARN)
    assert clouds.requests == []


def test_an_instance_is_asked_by_its_second_protocol_only(
    open_java: Opener, clouds: JsonServer
) -> None:
    open_java().wrap(KEYS[0], ARN)
    token, role, key, _ = clouds.requests
    assert token.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert role.headers["x-aws-ec2-metadata-token"] == "metadata-token"
    assert key.headers["x-aws-ec2-metadata-token"] == "metadata-token"
    before = len(clouds.requests)
    with pytest.raises(JavaError, match="KeyAccessDeniedException: no credentials for AWS"):
        open_java(AWS_EC2_METADATA_DISABLED="true").wrap(KEYS[0], ARN)
    with pytest.raises(JavaError, match="AWS_EC2_METADATA_SERVICE_ENDPOINT must be https"):
        open_java(AWS_EC2_METADATA_SERVICE_ENDPOINT="http://192.0.2.1").wrap(KEYS[0], ARN)
    assert len(clouds.requests) == before


@pytest.mark.parametrize("role", ["../../x", "a/b", "a b", "", "x" * 129, "a\nb"])
def test_a_forged_role_leads_to_no_request(
    open_java: Opener, clouds: JsonServer, role: str
) -> None:
    clouds.answer = lambda request: (200, role) if request.path == ROLES else respond(request)
    with pytest.raises(JavaError, match=r"KeyAccessDenied.*gives no access key \(200\)"):
        open_java().wrap(KEYS[0], ARN)
    assert len(clouds.requests) == 2


BOMB = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]>' + sts_answer("&b;")


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((403, {"message": SECRET}), "KeyAccessDenied"),
        ((302, ""), "KeyAccessDenied"),
        ((200, "<a><b></a>"), "KeyAccessDenied"),
        ((200, BOMB), "KeyAccessDenied"),
        ((200, sts_answer("A").replace("SessionToken", "Other")), "KeyAccessDenied"),
        ((200, key_of("A") | {"Expiration": "tomorrow"}), "KeyAccessDenied"),
        ((200, key_of("A") | {"Token": "a\r\nb"}), "KeyAccessDenied"),
        ((200, {"Code": "Failed", "Message": SECRET}), "KeyAccessDenied"),
        ((503, ""), "UnavailableException"),
        ((200, b"x" * ((1 << 20) + 1)), "is longer than 1048576 bytes"),
    ],
)
def test_a_place_that_gives_no_key_is_no_access(
    open_java: Opener, clouds: JsonServer, places: dict[str, str],
    answer: tuple[int, Any], match: str,
) -> None:  # fmt: skip
    clouds.answer = lambda request: answer
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        environment = {name: places[name], "AWS_ROLE_ARN": places["AWS_ROLE_ARN"]}
        with pytest.raises(JavaError, match=match) as caught:
            open_java(**environment).wrap(KEYS[0], ARN)
        assert leaks(str(caught.value), SECRET.encode(), TOKEN.encode()) == []
    assert not any("x-amz-target" in request.headers for request in clouds.requests)


def test_a_key_is_renewed_shortly_before_it_expires(open_java: Opener, clouds: JsonServer) -> None:
    minutes = iter((4, 60))

    def renew(request: JsonRequest) -> tuple[int, Any]:
        if request.path == f"{ROLES}lake-role":
            return 200, key_of("RENEWED", minutes=next(minutes))
        return respond(request)

    clouds.answer = renew
    java = open_java()
    for _ in range(3):
        java.wrap(KEYS[0], ARN)
    assert sum(request.path == f"{ROLES}lake-role" for request in clouds.requests) == 2


def test_a_refused_key_is_fetched_again(open_java: Opener, clouds: JsonServer) -> None:
    java = open_java()
    java.wrap(KEYS[0], ARN)
    expired = json.dumps({"__type": "ExpiredTokenException"})
    clouds.answer = lambda request: (
        (400, expired) if "x-amz-target" in request.headers else respond(request)
    )
    with pytest.raises(JavaError, match=r"KeyAccessDenied.* answered ExpiredToken"):
        java.wrap(KEYS[0], ARN)
    clouds.answer = respond
    java.wrap(KEYS[0], ARN)
    assert sum(request.path == ROLES for request in clouds.requests) == 2

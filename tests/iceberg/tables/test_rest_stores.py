"""Settings of a store that a REST catalog may make, and those that it may not."""

from __future__ import annotations

from typing import Any

import pytest

from modcrypt.errors import FormatError
from modcrypt.iceberg.tables.rest_stores import merge_settings

OWN = {
    "s3.access-key-id": "my-id",
    "s3.secret-access-key": "my-key",
    "s3.session-token": "my-token",
}
PAIR = {"s3.access-key-id": "id", "s3.secret-access-key": "key"}
SAS = "adls.sas-token.account.dfs.core.windows.net"
HOST = "http://127.0.0.1:9"


@pytest.mark.parametrize(("own", "vended", "merged"), [
    (OWN, {}, OWN),
    (OWN, PAIR, PAIR),  # never a token of one side with a key of the other
    ({"s3.profile-name": "me", "client.profile-name": "me"}, PAIR, PAIR),
    ({"client.session-token": "my-token"}, PAIR, PAIR),
    (OWN, {"s3.session-token": "token"}, OWN),  # a part of credentials
    (OWN, {"client.access-key-id": "id"}, OWN),
    (OWN, {"s3.endpoint": HOST, **PAIR}, {"s3.endpoint": HOST, **PAIR}),
    (OWN, {"s3.endpoint": HOST, "s3.anonymous": "true"},
     {"s3.endpoint": HOST, "s3.anonymous": "true"}),
    ({**OWN, "s3.endpoint": HOST}, {"s3.endpoint": HOST + "/"}, {**OWN, "s3.endpoint": HOST + "/"}),
    ({"s3.endpoint": HOST}, PAIR, {"s3.endpoint": HOST, **PAIR}),
    (OWN, {"s3.endpoint": "", "s3.region": "eu-1"}, {**OWN, "s3.region": "eu-1"}),
    ({}, {"s3.signer": "S3V4RestSigner", **PAIR}, PAIR),
    (OWN, {"s3.signer": "S3V4RestSigner"}, OWN),
    ({"s3.signer": "S3V4RestSigner"}, PAIR, PAIR),
    ({"adls.connection-string": "mine", "adls.client-secret": "mine", "adls.account-name": "me"},
     {SAS: "sv=1&sig=a%3D"}, {"adls.account-name": "me", SAS: "sv=1&sig=a%3D"}),
    ({"gcs.oauth2.token": "mine"}, {"gcs.oauth2.token": "ya29.c.b0Aaekm1K_-..."},
     {"gcs.oauth2.token": "ya29.c.b0Aaekm1K_-..."}),
    ({"uri": "http://catalog", "token": "secret"}, {}, {}),
    ({}, {"py-io-impl": "os.system", "s3.retry-strategy-impl": "os.system",
          "gcs.session-kwargs": "{}", "s3.profile-name": "admin", "adls.anon": "false",
          "client.role-arn": "arn:aws:iam::1:role/x", "hf.token": "x"}, {}),
])  # fmt: skip
def test_credentials_come_from_one_side_as_a_whole(
    own: dict[str, Any], vended: dict[str, str], merged: dict[str, Any]
) -> None:
    assert merge_settings(own, vended, "t") == merged


@pytest.mark.parametrize("vended", [
    {"s3.endpoint": HOST}, {"s3.endpoint": HOST, "s3.access-key-id": "id"},
    {"s3.endpoint": HOST, "s3.access-key-id": "id", "client.session-token": "token"},
    {"s3.endpoint": HOST, "s3.anonymous": "false"}, {"s3.proxy-uri": HOST, **PAIR},
    {"gcs.service.host": HOST}, {"gcs.service.host": HOST, "gcs.oauth2.token": "a" * 40},
    {"adls.account-host": "evil.example", SAS: "sig"},
    {"adls.connection-string": "BlobEndpoint=http://evil.example"},
    {"adls.blob-storage-authority": "evil.example"}, {"adls.dfs-storage-authority": "evil.example"},
    {"adls.blob-storage-scheme": "http"}, {"adls.dfs-storage-scheme": "http"},
])  # fmt: skip
@pytest.mark.parametrize("own", [{}, OWN, {"s3.endpoint": "http://mine"}])
def test_a_host_of_the_server_gets_no_credentials_of_the_user(
    own: dict[str, Any], vended: dict[str, str]
) -> None:
    with pytest.raises(FormatError, match=r"t: the REST catalog names .* filesystem="):
        merge_settings(own, vended, "t")


@pytest.mark.parametrize(("name", "value"), [
    ("s3.endpoint", "ftp://host"), ("s3.endpoint", "http://user@host"), ("s3.region", "a/b"),
    ("s3.region", "evil.example"), ("s3.anonymous", "perhaps"), ("s3.access-key-id", "a\nb"),
    ("gcs.oauth2.token", "google_default"), ("gcs.oauth2.token", "/home/me/credentials.json"),
    ("adls.account-name", "evil.example/"), ("adls.sas-token.evil/.windows.net", "sig"),
    ("adls.sas-token.account.windows.net/", "sig"), ("adls.sas-token.", "sig"),
])  # fmt: skip
def test_a_value_that_could_mean_something_else_is_refused(name: str, value: str) -> None:
    with pytest.raises(FormatError, match="is malformed"):
        merge_settings({}, {**PAIR, name: value}, "t")


@pytest.mark.parametrize(("own", "vended"), [
    ({}, {"s3.signer": "S3V4RestSigner"}),
    ({}, {"s3.signer": "S3V4RestSigner", "s3.endpoint": HOST}),
    ({**OWN, "s3.signer": "S3V4RestSigner"}, {}),
])  # fmt: skip
def test_signing_by_the_catalog_is_refused(own: dict[str, Any], vended: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=r"signed by the REST catalog \(s3.signer\)"):
        merge_settings(own, vended, "t")

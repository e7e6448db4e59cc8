"""Vault in Java: a real OpenBao that limits the rate of calls, spends tokens and speaks no TLS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.kms.key_servers import Bao
from tests.support.spark.java_client import KEYS, JavaClient, JavaError

pytest.importorskip("hvac")


@pytest.fixture
def mount(bao: Bao) -> str:
    """Mount a transit engine with the key lake."""
    path = bao.mount()
    bao.judge().secrets.transit.create_key("lake", mount_point=path)
    return path


def name_token(folder: Path, token: str) -> str:
    """Write a token into a file; return the part of a URI that names it."""
    path = folder / "token"
    path.write_text(token)
    path.chmod(0o600)
    return f"&token=file:{path}"


def test_a_quota_makes_java_wait(jvm: Any, bao: Bao, mount: str, tmp_path: Path) -> None:
    java = JavaClient(jvm, bao.uri(mount, name_token(tmp_path, bao.root_token)))
    adapter, path = bao.judge().adapter, f"/v1/sys/quotas/rate-limit/{mount}"
    adapter.post(path, json={"rate": 8, "interval": "1s", "path": mount})
    keys = [os.urandom(16) for _ in range(12)]
    assert [java.unwrap(java.wrap(key, "lake"), "lake") for key in keys] == keys


def test_a_spent_token_and_a_policy_that_refuses_are_called_that(
    jvm: Any, bao: Bao, mount: str, tmp_path: Path
) -> None:
    rules = {f"{mount}/encrypt/lake": ["update"]}
    java = JavaClient(jvm, bao.uri(mount, name_token(tmp_path, bao.token(rules, num_uses=2))))
    wrapped = java.wrap(KEYS[0], "lake")
    with pytest.raises(JavaError, match="policies of the token do not permit it"):
        java.unwrap(wrapped, "lake")
    with pytest.raises(JavaError, match=r"num_uses.*spent"):
        java.wrap(KEYS[0], "lake")


def test_a_vault_without_tls_and_one_with_it_are_called_that(
    jvm: Any, bao: Bao, mount: str, tmp_path: Path
) -> None:
    token = name_token(tmp_path, bao.root_token)
    java = JavaClient(jvm, f"hcvault://{bao.host}/{mount}?{token[1:]}")
    with pytest.raises(JavaError, match=r"does not speak TLS.*\?tls=off"):
        java.wrap(KEYS[0], "lake")
    java = JavaClient(jvm, f"hcvault://127.0.0.1:{bao.tls_port}/{mount}?tls=off{token}")
    with pytest.raises(JavaError, match="speaks TLS: remove tls=off"):
        java.wrap(KEYS[0], "lake")

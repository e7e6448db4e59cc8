"""Identities and files for recipients, which several tests share."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.keys import Secret, key_bytes
from modcrypt.kms.recipients.identity_retriever import IdentityRetriever
from modcrypt.kms.recipients.kinds import find_kind
from modcrypt.parquet.crypto.file_plan import OpenFile
from tests.support.secret_watch import KEYS
from tests.support.tables import small_table

TABLE = small_table(20)
KINDS = ("x25519", "mlkem768-x25519")


@cache
def identity(name: str = "me", kind: str = "x25519") -> mc.Identity:
    """Return the identity of someone, always the same; the watch looks for the key of "me"."""
    if name != "me":
        return mc.Identity.generate(kind)
    secret = KEYS["the marked private key"]
    public = find_kind("x25519").encode_public(secret)
    return mc.Identity(mc.Recipient("x25519", public), Secret(secret))


def write_for(*identities: mc.Identity, table: pa.Table = TABLE, **more: Any) -> bytes:
    """Return a file that is encrypted to the recipients of identities."""
    encryption = mc.kms.RecipientEncryption(recipients=[i.recipient for i in identities], **more)
    out = io.BytesIO()
    mc.write_table(table, out, encryption)
    return out.getvalue()


def open_with(*identities: mc.Identity, **more: Any) -> mc.FileDecryptionProperties:
    """Return properties that open files with identities."""
    retriever = identities[0] if len(identities) == 1 else IdentityRetriever(identities)
    return mc.FileDecryptionProperties(key_retriever=retriever, **more)


def read_with(data: bytes, *identities: mc.Identity, **more: Any) -> pa.Table:
    """Return the rows of a file that identities open."""
    return mc.read_table(io.BytesIO(data), open_with(*identities, **more))


def explicit_key(data: bytes, *identities: mc.Identity, **more: Any) -> bytes:
    """Return the footer key of a file that identities open."""
    with open_source(data) as source:
        key = OpenFile(source, open_with(*identities, **more)).footer.footer_key
    assert key is not None
    return key_bytes(key)

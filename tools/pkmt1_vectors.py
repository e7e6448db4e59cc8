"""The key material of spec-vectors/pkmt1: Parquet files whose keys are wrapped as PKMT1 says.

The material is built from the key tools' format with plain AES-GCM, without modcrypt's own.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from tools.case_terms import pkmt1_terms
from tools.module_vectors import KEYS
from tools.vector_files import describe_rows, fixed_random, plain
from tools.vector_patches import fixed_bytes

Json = dict[str, Any]
MASTERS = {"kf": "other-128", "kc": "column-b-128"}
"""Master key ids and the names of their keys, which the key service of the reader has."""
FOOTER_KEY, COLUMN_KEY, COLUMN = "footer-128", "column-a-128", "name"
SPEC = "PKMT1, key material"


@dataclass(frozen=True)
class Material:
    """How the keys of a file are wrapped, and what is wrong with the material of a hostile one."""

    name: str
    comment: str
    double: bool = False
    external: bool = False
    column_key: bool = False
    plaintext_footer: bool = False
    footer: Json = field(default_factory=dict)  # fields of the footer key's material
    column: Json = field(default_factory=dict)  # of the column key's
    file_footer: Json = field(default_factory=dict)  # of the metadata in the file, if external
    hostile: bool = False
    expect: str = "ok"
    spec: str = SPEC


def wrap(key: bytes, value: bytes, aad: bytes, seed: str) -> str:
    """Wrap a key as the key tools do locally: base64 of nonce, ciphertext and tag."""
    nonce = fixed_bytes(f"pkmt1 nonce {seed}", 12)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, aad)).decode()


def material(made: Material, role: str) -> Json:
    """Return the material of a file's footer key, or of its column key."""
    footer = role == "footer"
    master = "kf" if footer else "kc"
    key = KEYS[FOOTER_KEY if footer else COLUMN_KEY]
    wrapping, aad, more = KEYS[MASTERS[master]], master.encode(), {}
    if made.double:
        kek = fixed_bytes(f"pkmt1 kek {made.name} {role}", 16)
        kek_id = fixed_bytes(f"pkmt1 kek id {made.name} {role}", 16)
        more = {
            "keyEncryptionKeyID": base64.b64encode(kek_id).decode(),
            "wrappedKEK": wrap(wrapping, kek, aad, f"kek {made.name} {role}"),
        }
        wrapping, aad = kek, kek_id
    instance = {"kmsInstanceID": "DEFAULT", "kmsInstanceURL": "DEFAULT"} if footer else {}
    return {
        "keyMaterialType": "PKMT1",
        "internalStorage": not made.external,
        "isFooterKey": footer,
        **instance,
        "masterKeyID": master,
        "wrappedDEK": wrap(wrapping, key, aad, f"dek {made.name} {role}"),
        "doubleWrapping": made.double,
        **more,
        **(made.footer if footer else made.column),
    }


def reference(entry: str) -> Json:
    """Return what the file holds if the material is beside it."""
    return {"keyMaterialType": "PKMT1", "internalStorage": False, "keyReference": entry}


def encode(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def external_document(made: Material) -> bytes | None:
    """Return the file of key material; its values are strings of JSON."""
    if not made.external:
        return None
    entries = {"footerKey": encode(material(made, "footer")).decode()}
    if made.column_key:
        entries["columnKey0"] = encode(material(made, "column")).decode()
    return encode(entries)


@cache
def encrypted(name: str) -> bytes:
    """Return a file, which modcrypt encrypts with the keys and the metadata given."""
    made = BY_NAME[name]
    footer = reference("footerKey") if made.external else material(made, "footer")
    column = reference("columnKey0") if made.external else material(made, "column")
    columns: Json = {}
    if made.column_key:
        columns = {
            "column_keys": {COLUMN: KEYS[COLUMN_KEY]},
            "column_key_metadata": {COLUMN: encode(column)},
        }
    properties = mc.FileEncryptionProperties(
        footer_key=KEYS[FOOTER_KEY],
        footer_key_metadata=encode(footer | made.file_footer),
        plaintext_footer=made.plaintext_footer,
        **columns,
    )
    out = io.BytesIO()
    with fixed_random(f"pkmt1 {name}"):
        mc.encrypt_parquet(plain("small"), out, properties, threads=1)
    return out.getvalue()


FLIPPED = {"wrappedDEK": wrap(KEYS["other-128"], KEYS[FOOTER_KEY], b"another id", "flipped")}
FILES = [
    Material("single-internal", "the DEK under the master key, in the file"),
    Material("double-internal", "the DEK under a KEK, the KEK under the master key", double=True),
    Material("single-external", "the material in a file beside it", external=True),
    Material("double-external", "both", double=True, external=True),
    Material("single-internal-column", "a column key with another master key", column_key=True),
    Material("double-internal-column", "the same with KEKs", double=True, column_key=True),
    Material("double-external-column", "the same beside the file", double=True, external=True,
             column_key=True),
    Material("double-internal-pf", "in a signed plaintext footer", double=True,
             plaintext_footer=True),
    Material("instance-of-attacker", "the material names another instance of the key service",
             hostile=True, footer={"kmsInstanceID": "instance-2"}),
    Material("type-unknown", "another type of key material", hostile=True, expect="format",
             footer={"keyMaterialType": "PKMT9"}),
    Material("master-unknown", "a master key that the key service does not have", hostile=True,
             expect="no-key", footer={"masterKeyID": "kx"}),
    Material("master-of-column", "the master key of the column: the wrapping binds its id",
             hostile=True, expect="tag", footer={"masterKeyID": "kc"}),
    Material("dek-of-another-id", "a DEK wrapped for another master key id", hostile=True,
             expect="tag", footer=FLIPPED),
    Material("dek-not-base64", "what is wrapped is no base64", hostile=True, expect="format",
             footer={"wrappedDEK": "!!!!"}),
    Material("dek-empty", "what is wrapped is empty", hostile=True, expect="format",
             footer={"wrappedDEK": ""}),
    Material("dek-of-5-bytes", "the DEK has no size that AES has", hostile=True, expect="format",
             footer={"wrappedDEK": wrap(KEYS["other-128"], b"five!", b"kf", "five")}),
    Material("kek-id-of-another", "the KEK's id is the AAD of the DEK", double=True, hostile=True,
             expect="tag", footer={"keyEncryptionKeyID": base64.b64encode(bytes(16)).decode()}),
    Material("kek-without-double-wrapping", "double wrapping denied", double=True, hostile=True,
             expect="tag", footer={"doubleWrapping": False}),
    Material("reference-unknown", "a reference to an entry that does not exist", external=True,
             hostile=True, expect="no-key", file_footer={"keyReference": "footerKey9"}),
    Material("reference-to-path", "a reference that looks like a path", external=True,
             hostile=True, expect="no-key", file_footer={"keyReference": "../../etc/passwd"}),
    Material("reference-to-column-key", "the footer's reference names the column's entry",
             external=True, column_key=True, hostile=True, expect="tag",
             file_footer={"keyReference": "columnKey0"}),
]  # fmt: skip
BY_NAME = {made.name: made for made in FILES}
MISSING = "external-file-missing"


def cases() -> list[Json]:
    return [*map(describe, FILES), missing_case()]


def describe(made: Material) -> Json:
    """Return the case of a file."""
    return make_case(made, made.name, made.comment, made.expect, external=made.external)


def missing_case() -> Json:
    """Return the case of a file whose material is not beside it."""
    made = BY_NAME["single-external"]
    return make_case(made, MISSING, "the file with the material is gone", "no-key", external=False)


def make_case(made: Material, name: str, comment: str, expect: str, *, external: bool) -> Json:
    case = {
        "id": name,
        "comment": comment,
        "spec": made.spec,
        "tags": ["plaintext-footer" if made.plaintext_footer else "encrypted-footer",
                 *(["security"] if made.hostile else [])],
        "file": f"base/{made.name}.parquet",
        "external": f"base/_KEY_MATERIAL_FOR_{made.name}.parquet.json" if external else None,
        "master_keys": MASTERS,
        "keys": {"footer": FOOTER_KEY, "columns": {COLUMN: COLUMN_KEY} if made.column_key else {}},
        "properties": {},
        "expect": expect,
        "error": None,
        "plain": "parquet/plain/small.parquet",
        "rows": describe_rows(plain("small")) if expect == "ok" else None,
        "control": control_of(made, name),
    }  # fmt: skip
    terms = pkmt1_terms(case)
    if made.hostile and expect == "ok":
        terms["outcome"] = "either"
    if made.external:
        terms["features"] = sorted({*terms["features"], "external-keys"})
    return case | terms


def control_of(made: Material, name: str) -> str | None:
    """Return the honest case that is wrapped and stored in the same way."""
    if not made.hostile and name == made.name:
        return None
    return next(
        other.name for other in FILES
        if not other.hostile and (other.double, other.external) == (made.double, made.external)
    )  # fmt: skip


def documents() -> dict[str, bytes]:
    """Return all files under spec-vectors/pkmt1, by their paths in spec-vectors."""
    listed = {"about": "Key material of the key tools, PKMT1", "cases": cases()}
    found = {"pkmt1/cases.json": (json.dumps(listed, indent=1) + "\n").encode()}
    for made in FILES:
        found[f"pkmt1/base/{made.name}.parquet"] = encrypted(made.name)
        if (beside := external_document(made)) is not None:
            found[f"pkmt1/base/_KEY_MATERIAL_FOR_{made.name}.parquet.json"] = beside
    return found

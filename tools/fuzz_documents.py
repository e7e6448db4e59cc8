"""Check that hostile seals, keys and TOML raise ModcryptError or name mistakes, nothing else.

    python tools/fuzz.py --only documents

Each round changes a valid document with seeded random edits. Half of the changed seals are signed
again: those are the seals of a hostile writer, or of a reader of the writer's key.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import modcrypt as mc
from modcrypt.errors import KeyMaterialError
from modcrypt.kms.recipients.private_key_file import decode_private_key
from modcrypt.kms.signing.signing_keys import SIGNING_FILE
from modcrypt.lake.declarations.declaration_parsing import parse_declaration
from tests.support.lake_folder import DECLARATION
from tools import seal_vectors
from tools.fuzz_targets import Target

FOLDER = Path(tempfile.gettempdir()) / "modcrypt-fuzz-has-no-such-folder"
"""Folder of declarations and policies, which they find empty."""

POLICY = """\
kms = "file:lake.keyring"
footer_key = "footer"
plaintext_columns = ["country"]
aad_prefix = "orders/{path}"
signed_by = ["writer.pub"]
seal_at_least = 3

[column_keys]
pii = ["iban", "address"]
"""
TABLE = """\
kms = "env:KEY"

[dataset.events]
kind = "iceberg"
catalog = "sqlite:///catalog.db"
table = "sales.events"
master_key = "lake"
kek_per = "day"
location_map = { "s3://old" = "new" }
previous.master_keys = { old = "lake" }
rotation = { max_version_age = "52w", max_kek_age = "30d" }
"""


def check_seal(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "_modcrypt_seal.json").write_bytes(data)
        return mc.jobs.verify_seal(folder, [seal_vectors.WRITER.verifier])


def check_verifier(data: bytes) -> object:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return mc.kms.VerifyingKey.parse(text)


def check_declaration(data: bytes) -> object:
    try:
        text = data.decode()
    except UnicodeDecodeError:  # which the reader of the file refuses
        return None
    declaration, faults = parse_declaration(text, FOLDER / "modcrypt.toml", "file:k")
    assert (declaration is None) == bool(faults), "neither a declaration nor a mistake"
    return "".join(map(str, faults)).encode()


def check_policy(data: bytes) -> object:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            return mc.Policy.load(file.name)
        except ValueError as error:
            if type(error) is ValueError:  # a caller's mistake
                return None
            raise


def check_signing_key(data: bytes) -> object:
    public, key = decode_private_key(data, SIGNING_FILE)
    if not isinstance(key, bytes):
        raise KeyMaterialError("not the scrypt of every round")
    return mc.kms.VerifyingKey.parse(public)


def targets() -> list[Target]:
    """Return what is changed."""
    writer = seal_vectors.WRITER
    with tempfile.TemporaryDirectory() as folder:
        writer.save(Path(folder) / "writer.key")
        signing_key = (Path(folder) / "writer.key").read_bytes()
    statement = seal_vectors.encode(seal_vectors.statement(writer))
    return [
        Target(seal_vectors.sign(statement), check_seal),
        Target(statement, check_seal, seal_vectors.sign),
        Target(json.dumps(seal_vectors.table_statement(writer)).encode(), check_seal),
        Target(str(writer.verifier).encode(), check_verifier),
        Target(signing_key, check_signing_key),
        Target(DECLARATION.encode(), check_declaration),
        Target(TABLE.encode(), check_declaration),
        Target(POLICY.encode(), check_policy),
    ]

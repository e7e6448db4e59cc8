"""Open a file for recipients with only `cryptography`, independently of modcrypt.

This was written from docs/reference/recipients.md, and shares no code with the package. It finds
the file's keys with an identity, and `verify_pme` opens every module with them.

    python tools/verify_recipients.py FILE --identity me.key [--passphrase-file P]
        [--aad-prefix HEX] [--ctr] [--keys OUT]

`--keys` also writes the keys for other readers: a file of mode 0600, as verify_pme.py takes it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

from tools import verify_pme
from tools.verify_pme import VerifyError, read_struct

KEMS = {"x25519": KEM.X25519, "mlkem768-x25519": KEM.MLKEM768_X25519}
PUBLIC_SIZES = {"x25519": 32, "mlkem768-x25519": 1184 + 32}


class FileKeys(NamedTuple):
    """The keys of a file, as `verify_pme` takes them."""

    footer_key: bytes
    column_keys: dict[str, bytes]


class Identity(NamedTuple):
    """A private key with its kind and the id of its recipient."""

    kind: str
    id: bytes
    key: Any


def refuse(word: str, message: str) -> VerifyError:
    return VerifyError(word, message)


def parse_json(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object without repeated members."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a member is repeated")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=build)
    except (ValueError, RecursionError) as error:
        raise refuse("key-material", "no JSON") from error
    if not isinstance(value, dict):
        raise refuse("key-material", "no JSON object")
    return value


def from_base64(text: Any, size: int | None = None) -> bytes:
    """Decode canonical base64 of `size` bytes."""
    data = b""
    if isinstance(text, str):
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            data = b""
    if not data or base64.b64encode(data).decode() != text or size not in (None, len(data)):
        raise refuse("key-material", "no base64, or another length")
    return data


# --- recipients and identities -------------------------------------------------------------------


def recipient_id(kind: str, public: bytes) -> bytes:
    content = b"modcrypt-recipient-id\0" + kind.encode() + b"\0" + public
    return hashlib.sha256(content).digest()[:16]


def load_public(kind: str, public: bytes) -> Any:
    if kind == "x25519":
        return X25519PublicKey.from_public_bytes(public)
    return MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(public[:1184]),
        X25519PublicKey.from_public_bytes(public[1184:]),
    )


def parse_recipient(line: str) -> tuple[str, bytes]:
    """Return the kind and the public key of a recipient's line."""
    parts = line.split(":")
    if len(parts) != 4 or parts[0] != "modcrypt-recipient" or parts[1] not in KEMS:
        raise refuse("key-material", "no recipient")
    _, kind, text, checksum = parts
    try:
        public = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError as error:
        raise refuse("key-material", "no base64url") from error
    if base64.urlsafe_b64encode(public).rstrip(b"=").decode() != text:
        raise refuse("key-material", "base64url has another form")
    if len(public) != PUBLIC_SIZES[kind] or recipient_id(kind, public).hex() != checksum:
        raise refuse("key-material", "another length, or the checksum does not match")
    try:
        Suite(KEMS[kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM).encrypt(b"", load_public(kind, public))
    except ValueError as error:
        raise refuse("key-material", "an invalid public key") from error
    return kind, public


def open_identity(data: bytes, passphrase: bytes | None = None) -> Identity:
    """Return the identity in a file."""
    document = parse_json(data)
    if document.get("format") != "modcrypt-identity" or document.get("version") != 1:
        raise refuse("key-material", "no identity")
    kind, public = parse_recipient(str(document.get("recipient")))
    if document.get("protection") == "none":
        secret = from_base64(document["key"])
    else:
        secret = _unseal(document, passphrase)
    if kind == "x25519":
        key: Any = X25519PrivateKey.from_private_bytes(secret)
        own = key.public_key().public_bytes_raw()
    else:
        mlkem = MLKEM768PrivateKey.from_seed_bytes(secret[:64])
        x25519 = X25519PrivateKey.from_private_bytes(secret[64:])
        key = MLKEM768X25519PrivateKey(mlkem, x25519)
        own = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
    if own != public:
        raise refuse("key-material", "the private key of another recipient")
    return Identity(kind, recipient_id(kind, public), key)


def _unseal(document: dict[str, Any], passphrase: bytes | None) -> bytes:
    """Decrypt the private key with the key that scrypt derives from the passphrase."""
    if passphrase is None:
        raise refuse("denied", "a passphrase is needed")
    scrypt, block = document["scrypt"], from_base64(document["sealed"])
    aad = {name: value for name, value in document.items() if name != "sealed"}
    derived = Scrypt(
        from_base64(scrypt["salt"], 16), 32, scrypt["n"], scrypt["r"], scrypt["p"]
    ).derive(passphrase)  # fmt: skip
    try:
        return AESGCM(derived).decrypt(
            block[:12], block[12:], json.dumps(aad, separators=(",", ":"), sort_keys=True).encode()
        )
    except InvalidTag as error:
        raise refuse("denied", "wrong passphrase, or altered") from error


# --- key metadata --------------------------------------------------------------------------------

COLUMN_MEMBERS = {"keyMaterialType", "version", "keyEncryptionKeyID", "wrappedDEK"}


def parse_metadata(metadata: bytes) -> dict[str, Any]:
    """Return the object for recipients in key metadata, which may be in PKMT1 material."""
    value = parse_json(metadata)
    if value.get("keyMaterialType") == "PKMT1":
        value = parse_json(value.get("modcryptRecipients", ""))
    if value.get("keyMaterialType") != "modcrypt-recipients" or value.get("version") != 1:
        raise refuse("key-material", "another type or version")
    if value["version"] is True or set(value) - {"recipients"} != COLUMN_MEMBERS:
        raise refuse("key-material", "other members")
    return value


def open_kek(footer: dict[str, Any], identity: Identity, file_aad: bytes) -> bytes:
    """Decrypt the file's KEK with an identity."""
    recipients = footer.get("recipients")
    if not isinstance(recipients, list) or not 0 < len(recipients) <= 4096:
        raise refuse("key-material", "no list of recipients")
    wraps = {}
    for entry in recipients:
        if not isinstance(entry, dict) or set(entry) != {"kind", "id", "wrappedKEK"}:
            raise refuse("key-material", "other members of a recipient")
        wrapped = from_base64(entry["wrappedKEK"])
        if len(wrapped) > 2048 or entry["id"] in wraps:
            raise refuse("key-material", "a recipient twice, or a long KEK")
        from_base64(entry["id"], 16)
        wraps[entry["id"]] = entry["kind"], wrapped
    kind, wrapped = wraps.get(base64.b64encode(identity.id).decode(), ("", b""))
    if kind != identity.kind:
        raise refuse("no-key", "the identity is not among the recipients")
    return decrypt(identity, wrapped, b"file KEK", file_aad)


def decrypt(identity: Identity, wrapped: bytes, role: bytes, file_aad: bytes) -> bytes:
    """Decrypt what is encrypted to the recipient of an identity."""
    info = b"modcrypt-recipients\x00\x01" + role + b"\x00" + file_aad
    suite = Suite(KEMS[identity.kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    try:
        return suite.decrypt(wrapped, identity.key, info)
    except (InvalidTag, ValueError) as error:
        raise refuse("key-material", "it does not decrypt") from error


def unwrap(material: dict[str, Any], kek_id: str, kek: bytes) -> bytes:
    """Unwrap a data key under the file's KEK."""
    if material["keyEncryptionKeyID"] != kek_id:
        raise refuse("key-material", "the KEK of another file")
    block = from_base64(material["wrappedDEK"])
    if len(kek) != 32 or len(block) - 28 not in (16, 24, 32):
        raise refuse("key-material", "a key of another length")
    try:
        return AESGCM(kek).decrypt(block[:12], block[12:], from_base64(kek_id, 16))
    except InvalidTag as error:
        raise refuse("key-material", "a data key does not unwrap") from error


def open_keys(
    footer: bytes, columns: dict[str, bytes], identity: Identity, file_aad: bytes
) -> FileKeys:
    """Return the keys in the key metadata of the footer and of columns."""
    material = parse_metadata(footer)
    kek_id = material["keyEncryptionKeyID"]
    kek = open_kek(material, identity, file_aad)
    return FileKeys(
        unwrap(material, kek_id, kek),
        {name: unwrap(parse_metadata(data), kek_id, kek) for name, data in columns.items()},
    )


# --- files ---------------------------------------------------------------------------------------


def read_keys(data: bytes, identity: Identity, aad_prefix: bytes | None = None) -> FileKeys:
    """Return the keys of a Parquet file."""
    size = int.from_bytes(data[-8:-4], "little")
    tail, encrypted = data[-8 - size : -8], data[-4:] == b"PARE"
    fields, end = read_struct(tail)
    union, metadata = (fields[1], fields[2]) if encrypted else (fields[8], fields[9])
    algorithm = union.get(1, union.get(2))
    file_aad = (algorithm.get(1) or aad_prefix or b"") + algorithm[2]
    keys = open_keys(bytes(metadata), {}, identity, file_aad)
    if encrypted:
        aad = verify_pme.module_aad(file_aad, verify_pme.FOOTER)
        fields, _ = read_struct(verify_pme.open_module(keys.footer_key, aad, tail[end:]))
    columns = {}
    for row_group in fields[4]:
        for chunk in row_group[1]:
            own = chunk.get(8, {}).get(2)
            if own is not None:
                columns[b".".join(own[1]).decode()] = bytes(own[2])
    return open_keys(bytes(metadata), columns, identity, file_aad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--identity", type=Path, required=True)
    parser.add_argument("--passphrase-file", type=Path)
    parser.add_argument("--aad-prefix", type=bytes.fromhex)
    parser.add_argument("--ctr", action="store_true")
    parser.add_argument("--keys", type=Path)
    options = parser.parse_args()
    word = options.passphrase_file and options.passphrase_file.read_bytes().splitlines()[0]
    data = options.file.read_bytes()
    algorithms = ("AES_GCM_V1", "AES_GCM_CTR_V1") if options.ctr else ("AES_GCM_V1",)
    try:
        keys = read_keys(
            data, open_identity(options.identity.read_bytes(), word), options.aad_prefix
        )
        modules = verify_pme.verify(data, *keys, options.aad_prefix, accept_algorithms=algorithms)
    except VerifyError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(modules)} modules")
    if options.keys is not None:
        columns = {name: key.hex() for name, key in keys.column_keys.items()}
        written = {"footer_key": keys.footer_key.hex(), "column_keys": columns}
        if options.aad_prefix is not None:
            written["aad_prefix"] = options.aad_prefix.hex()
        with os.fdopen(
            os.open(options.keys, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as f:
            json.dump(written, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build spec-vectors/recipients: keys, lines, key metadata and files for recipients.

    python -m tools.recipient_vectors

HPKE takes fresh randomness for every encryption, so the vectors are built once and not again;
tests check them with modcrypt and with the independent verifier.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt.keys import Key
from modcrypt.kms.recipients import private_key_file
from modcrypt.kms.recipients.file_recipients import FileRecipients
from modcrypt.pkmt1.recipient_metadata import add_to_pkmt1
from tools import verify_recipients
from tools.vector_patches import FOLDER, fixed_bytes

Json = dict[str, Any]
RECIPIENTS = FOLDER / "recipients"
PASSPHRASE = "correct horse battery staple"
AAD = b"lake/part-0" + bytes(range(8))
PKMT1 = '{"keyMaterialType":"PKMT1","internalStorage":true,"masterKeyID":"kf","wrappedDEK":"AAAA"}'
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


@dataclass(frozen=True)
class Fault:
    """A change of valid key metadata, and the error code that it must give."""

    name: str
    change: Callable[[Json], object]
    expect: str = "key-material"


def first(name: str, value: object) -> Callable[[Json], object]:
    return lambda members: members["recipients"][0].update({name: value})


def flip(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(data).decode()


FAULTS = (
    Fault("version-2", lambda m: m.update(version=2)),
    Fault("version-true", lambda m: m.update(version=True)),
    Fault("another-type", lambda m: m.update(keyMaterialType="modcrypt-recipients-2")),
    Fault("unknown-member", lambda m: m.update(more=1)),
    Fault("no-recipients", lambda m: m.pop("recipients")),
    Fault("empty-recipients", lambda m: m.update(recipients=[])),
    Fault("recipient-twice", lambda m: m["recipients"].append(m["recipients"][0])),
    Fault("kek-altered", lambda m: first("wrappedKEK", flip(m["recipients"][0]["wrappedKEK"]))(m)),
    Fault("kek-cut", first("wrappedKEK", "AAAA")),
    Fault("kek-id-altered", lambda m: m.update(keyEncryptionKeyID=flip(m["keyEncryptionKeyID"]))),
    Fault("dek-altered", lambda m: m.update(wrappedDEK=flip(m["wrappedDEK"]))),
    Fault("dek-not-base64", lambda m: m.update(wrappedDEK="!")),
    Fault("kind-of-another", first("kind", "mlkem768-x25519"), "no-key"),
    Fault("unknown-kind", first("kind", "p521"), "no-key"),
    Fault("id-of-another", first("id", base64.b64encode(bytes(16)).decode()), "no-key"),
)


def case(name: str, comment: str, expect: str = "ok", **more: Any) -> Json:
    return {"id": name, "comment": comment, "expect": expect, **more}


def line_cases(identities: dict[str, mc.Identity]) -> list[Json]:
    """Return recipients' lines, valid and not."""
    short, hybrid = str(identities["x25519"].recipient), str(identities["hybrid"].recipient)
    zero = base64.urlsafe_b64encode(bytes(32)).rstrip(b"=").decode()
    id_ = verify_recipients.recipient_id("x25519", bytes(32)).hex()
    wrong = {
        "checksum": short[:-1] + ("0" if short[-1] != "0" else "1"),
        "kind": short.replace(":x25519:", ":p256:"),
        "kind-of-another": short.replace(":x25519:", ":mlkem768-x25519:"),
        "cut": short[:-33],
        "padding": short.replace(short.split(":")[2], short.split(":")[2] + "="),
        "low-order-point": f"modcrypt-recipient:x25519:{zero}:{id_}",
        "upper-case-id": short[:-32] + short[-32:].upper(),
        "another-prefix": short.replace("modcrypt", "age"),
    }
    return [
        case("x25519", "a short key", line=short),
        case("hybrid", "ML-KEM-768 and X25519", line=hybrid),
        *(case(n, n.replace("-", " "), "key-material", line=line) for n, line in wrong.items()),
    ]


def metadata_cases(identities: dict[str, mc.Identity]) -> list[Json]:
    """Return key metadata of footers and columns, valid and not."""
    dek, column = fixed_bytes("recipients dek", 16), fixed_bytes("recipients column", 32)
    me, hybrid = identities["x25519"], identities["hybrid"]
    cases = []

    def add(
        name: str, comment: str, identity: str, footer: str, expect: str = "ok", **more: Any
    ) -> None:  # fmt: skip
        valid = {"footer_key": dek.hex()} if expect == "ok" else {}
        given = {"identity": f"{identity}.key", "file_aad": AAD.hex(), "footer": footer}
        cases.append(case(name, comment, expect, **given, **valid, **more))

    file = FileRecipients.create((me.recipient, hybrid.recipient))
    footer = file.wrap_footer_key(Key(dek), AAD).encode()
    own = file.wrap_column_key(Key(column)).encode()
    keys = {"column": own, "column_key": column.hex()}
    add("first-recipient", "two recipients; an AES-128 data key", "x25519", footer)
    add("second-recipient", "the same for the other", "hybrid", footer)
    add("column", "a column's own AES-256 key", "x25519", footer, **keys)
    add("stranger", "an identity that is not listed", "stranger", footer, "no-key")
    both = add_to_pkmt1(PKMT1, file.wrap_footer_key(Key(dek), AAD))
    add("beside-pkmt1", "in PKMT1 material", "x25519", both)
    other = FileRecipients.create((me.recipient,))
    moved = other.wrap_footer_key(Key(dek), AAD + b"x").encode()
    add("another-file", "the KEK is bound to another AAD", "x25519", moved, "key-material")
    foreign = other.wrap_column_key(Key(column)).encode()
    add("column-of-another-file", "another KEK", "x25519", footer, "key-material", column=foreign)
    single = FileRecipients.create((me.recipient,)).wrap_footer_key(Key(dek), AAD).encode()
    for fault in FAULTS:
        members = json.loads(single)
        fault.change(members)
        text = json.dumps(members, separators=(",", ":"))
        add(fault.name, fault.name.replace("-", " "), "x25519", text, fault.expect)
    add(
        "member-twice", "a repeated member", "x25519", single[:-1] + ',"version":1}', "key-material"
    )
    return cases


def file_cases(identities: dict[str, mc.Identity]) -> list[Json]:
    """Write whole files, and return their cases."""
    to = [identities["x25519"].recipient, identities["hybrid"].recipient]
    cases: list[Json] = []

    def add(name: str, comment: str, encryption: Any, **more: Any) -> None:
        out = io.BytesIO()
        mc.write_table(TABLE, out, encryption)
        (RECIPIENTS / f"{name}.parquet").write_bytes(out.getvalue())
        shared = {"file": f"{name}.parquet", **more}
        for identity, expect in (("x25519", "ok"), ("hybrid", "ok"), ("stranger", "no-key")):
            about = f"{comment}; opened by {identity}"
            cases.append(
                case(f"{name}-{identity}", about, expect, identity=f"{identity}.key", **shared)
            )

    add("encrypted-footer", "one key for all", mc.kms.RecipientEncryption(recipients=to))
    add(
        "plaintext-footer",
        "a signed footer",
        mc.kms.RecipientEncryption(recipients=to, options={"plaintext_footer": True}),
    )
    add(
        "prefix",
        "an AAD prefix that is not stored",
        mc.kms.RecipientEncryption(
            recipients=to, aad_prefix=b"lake", options={"store_aad_prefix": False}
        ),
        aad_prefix=b"lake".hex(),
    )
    ring = mc.Keyring.create(RECIPIENTS / "keyring.tmp", plaintext=True)
    try:
        for name in ("kf", "kc"):
            ring.create_key(name, value=fixed_bytes(f"recipients {name}", 16))
        policy = mc.Policy(footer_key="kf", column_keys={"kc": ["name"]})
        both = mc.KeyTools(ring).encryption(policy, recipients=to)
        add("beside-a-key-service", "PKMT1 material; a column with its own key", both)
    finally:
        (RECIPIENTS / "keyring.tmp").unlink()
    return cases


def write(name: str, cases: list[Json]) -> None:
    (RECIPIENTS / name).write_text(json.dumps({"cases": cases}, indent=1) + "\n")


def build() -> None:
    RECIPIENTS.mkdir(exist_ok=True)
    private_key_file.SCRYPT_COST = 2**14
    identities = {
        name: mc.Identity.generate("mlkem768-x25519" if name == "hybrid" else "x25519")
        for name in ("x25519", "hybrid", "stranger", "passphrase")
    }
    for name, identity in identities.items():
        (RECIPIENTS / f"{name}.key").unlink(missing_ok=True)
        word = PASSPHRASE if name == "passphrase" else None
        identity.save(RECIPIENTS / f"{name}.key", word)
    write("lines.json", line_cases(identities))
    write("key_metadata.json", metadata_cases(identities))
    write("files.json", file_cases(identities))


if __name__ == "__main__":
    build()

"""Build spec-vectors/signatures: signed files, and what their attackers made of them.

    python -m tools.signature_vectors

Keys, nonces and signatures of ML-DSA-65 are random, so the vectors are built once and not again;
tests check them with modcrypt and with the independent verifier.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

import modcrypt as mc
from modcrypt.parquet.format.idl import extension, set_extension
from tests.support.forging import change_footer, join_tail, split_tail
from tools.case_terms import signature_terms
from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.rows import row_digest
from tools.module_vectors import KEYS
from tools.vector_patches import FOLDER

Json: TypeAlias = "dict[str, Any]"
SIGNATURES = FOLDER / "signatures"
FOOTER_KEY, COLUMN_KEY = KEYS["signed-footer-128"], KEYS["signed-column-128"]
TABLE = pa.table({"id": [1, 2, 3, 4], "name": ["a", None, "c", "d"], "city": ["x"] * 4})
CTR = "AES_GCM_CTR_V1"
FILES: dict[str, tuple[str, Json]] = {
    "encrypted-footer": ("ed25519", {}),
    "plaintext-footer": ("ed25519", {"plaintext_footer": True}),
    "ctr": ("ed25519", {"encryption_algorithm": CTR}),
    "mldsa65": ("mldsa65", {}),
    "prefix": ("ed25519", {"aad_prefix": b"lake/part-0", "store_aad_prefix": False}),
    "unsigned": ("", {}),
}


def write_file(key: mc.SigningKey | None, options: Json) -> bytes:
    out = io.BytesIO()
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, plaintext_columns=["city"],
        signing_key=key, **options,
    )  # fmt: skip
    mc.write_table(
        TABLE, out, encryption, row_group_size=2, write_page_index=True, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    return out.getvalue()


def replace_once(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


def drop_row_group(data: bytes) -> bytes:
    def drop(metadata: Any) -> None:
        metadata.num_rows -= metadata.row_groups.pop().num_rows

    return change_footer(data, FOOTER_KEY, drop)


def edit_block(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that changes the signature's block and seals the footer again."""

    def edit(metadata: Any) -> None:
        set_extension(metadata, change(extension(metadata) or b"") or None)

    return lambda data: change_footer(data, FOOTER_KEY, edit)


def flip_at(at: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        return data[:at] + bytes((data[at] ^ 1,)) + data[at % len(data) + 1 :]

    return flip


def flip_last_of_first_page(data: bytes) -> bytes:
    """Flip a bit of a page's ciphertext, which CTR does not authenticate."""
    size = int.from_bytes(data[4:8], "little") + 4
    end = 4 + size + 4 + int.from_bytes(data[4 + size : 8 + size], "little")
    return data[: end - 1] + bytes((data[end - 1] ^ 1,)) + data[end:]


ATTACKS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "signature-removed": ("encrypted-footer", edit_block(lambda block: b"")),
    "signature-removed-plaintext-footer": ("plaintext-footer", edit_block(lambda block: b"")),
    "plaintext-column-altered": ("encrypted-footer", replace_once(b"\1\0\0\0x", b"\1\0\0\0y")),
    "ctr-page-altered": ("ctr", flip_last_of_first_page),
    "row-group-dropped": ("encrypted-footer", drop_row_group),
    "row-group-dropped-plaintext-footer": ("plaintext-footer", drop_row_group),
    "list-altered": ("encrypted-footer", edit_block(flip_at(20))),
    "list-shortened": ("encrypted-footer", edit_block(lambda block: block[41:])),
    "signature-altered": ("encrypted-footer", edit_block(flip_at(-50))),
    "scheme-of-another": ("encrypted-footer", edit_block(flip_at(-33))),
    "id-of-another": ("encrypted-footer", edit_block(flip_at(-20))),
    "version-0": ("encrypted-footer", edit_block(flip_at(-34))),
    "size-of-the-list": ("encrypted-footer", edit_block(flip_at(-37))),
}


REPLAYED = "footer-of-another"
"""The case of a file that has the footer of another one, from the same table and key."""
STRANGER = "stranger"
"""The case of a verifying key that signed nothing."""
COMMENTS = {
    "encrypted-footer": "signed with Ed25519, the footer is encrypted",
    "plaintext-footer": "signed with Ed25519, the footer is in plaintext",
    "ctr": "signed with Ed25519, pages are under AES_GCM_CTR_V1",
    "mldsa65": "signed with ML-DSA-65",
    "prefix": "signed with Ed25519, the reader supplies the AAD prefix",
    "unsigned": "a valid file without a signature",
    STRANGER: "a valid file by another writer than the one that is required",
    "signature-removed": "the footer's extension is taken out",
    "signature-removed-plaintext-footer": "the same in a plaintext footer",
    "plaintext-column-altered": "a value of a plaintext column is another one",
    "ctr-page-altered": "a bit of a page under CTR, which no tag protects",
    "row-group-dropped": "the footer lists one row group less",
    "row-group-dropped-plaintext-footer": "the same in a plaintext footer",
    "list-altered": "a bit of the list of hashes",
    "list-shortened": "the list of hashes lacks its first entry",
    "signature-altered": "a bit of the signature",
    "scheme-of-another": "the signature names another scheme",
    "id-of-another": "the signature names another verifying key",
    "version-0": "the signature has another version of the format",
    "size-of-the-list": "the signature states another length of the list",
    REPLAYED: "the signed footer of another file of the same writer",
}


def build() -> None:
    """Write the keys and the files; `tools/vectors.py build` writes cases.json."""
    SIGNATURES.mkdir(exist_ok=True)
    keys = {scheme: mc.SigningKey.generate(scheme) for scheme in ("ed25519", "mldsa65")}
    for scheme, key in keys.items():
        (SIGNATURES / f"{scheme}.pub").write_text(f"{key.verifier}\n")
    (SIGNATURES / "stranger.pub").write_text(f"{mc.SigningKey.generate().verifier}\n")
    files = {name: write_file(keys.get(s), options) for name, (s, options) in FILES.items()}
    for name, (base, attack) in ATTACKS.items():
        files[name] = attack(files[base])
        assert files[name] != files[base], name
    body, _, magic = split_tail(files["encrypted-footer"])
    again = write_file(keys["ed25519"], {})
    files[REPLAYED] = join_tail(body, split_tail(again)[1], magic)
    for name, data in files.items():
        (SIGNATURES / f"{name}.parquet").write_bytes(data)


def cases() -> list[Json]:
    """Return the cases."""
    bases = {
        **{name: name for name in FILES},
        STRANGER: "encrypted-footer",
        **{name: base for name, (base, _) in ATTACKS.items()},
        REPLAYED: "encrypted-footer",
    }
    return [make_case(name, base) for name, base in bases.items()]


def make_case(name: str, base: str) -> Json:
    """Return the case of a file that was made from `base`."""
    scheme, options = FILES[base]
    supplied, valid = options.get("aad_prefix"), name == base and bool(scheme)
    made = {
        "id": name,
        "comment": COMMENTS[name],
        "spec": "signatures.md",
        "file": f"{base if name == STRANGER else name}.parquet",
        "verifier": f"{STRANGER if name == STRANGER else scheme or 'ed25519'}.pub",
        "keys": {"footer": "signed-footer-128", "columns": {"name": "signed-column-128"}},
        "algorithm": options.get("encryption_algorithm", "AES_GCM_V1"),
        "aad_prefix": None if supplied is None else supplied.hex(),
        "expect": "ok" if valid else "writer-signature",
        "rows": {"count": TABLE.num_rows, "sha256": row_digest(**tagged_rows(TABLE))},
        "control": None if valid else base if scheme else "encrypted-footer",
    }
    return made | signature_terms(made, plaintext_footer=options.get("plaintext_footer", False))


if __name__ == "__main__":
    build()

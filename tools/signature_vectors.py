"""Build spec-vectors/signatures: signed files, and what their attackers made of them.

    python -m tools.signature_vectors

Keys, nonces and signatures of ML-DSA-65 are random, so the vectors are built once and not again;
tests check them with modcrypt and with the independent verifier.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

import modcrypt as mc
from modcrypt.parquet.format.idl import extension, set_extension
from tests.support.forging import change_footer, join_tail, split_tail
from tools.vector_patches import FOLDER

Json: TypeAlias = "dict[str, Any]"
SIGNATURES = FOLDER / "signatures"
FOOTER_KEY, COLUMN_KEY = b"0123456789012345", b"1234567890123450"
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


def build() -> None:
    """Write the keys, the files and cases.json."""
    SIGNATURES.mkdir(exist_ok=True)
    keys = {scheme: mc.SigningKey.generate(scheme) for scheme in ("ed25519", "mldsa65")}
    for scheme, key in keys.items():
        (SIGNATURES / f"{scheme}.pub").write_text(f"{key.verifier}\n")
    (SIGNATURES / "stranger.pub").write_text(f"{mc.SigningKey.generate().verifier}\n")
    files = {name: write_file(keys.get(s), options) for name, (s, options) in FILES.items()}
    cases = [make_case(name, name, *made, files[name]) for name, made in FILES.items()]
    cases.append(make_case("stranger", "encrypted-footer", "stranger", {}, b""))
    for name, (base, attack) in ATTACKS.items():
        altered = attack(files[base])
        assert altered != files[base], name
        scheme, options = FILES[base]
        cases.append(make_case(name, name, scheme, options, altered))
    body, _, magic = split_tail(files["encrypted-footer"])
    again = write_file(keys["ed25519"], {})
    replayed = join_tail(body, split_tail(again)[1], magic)
    cases.append(make_case("footer-of-another", "footer-of-another", "ed25519", {}, replayed))
    (SIGNATURES / "cases.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


def make_case(name: str, file: str, scheme: str, options: Json, data: bytes) -> Json:
    """Return a case, after writing its file unless it is that of another case."""
    if data:
        (SIGNATURES / f"{file}.parquet").write_bytes(data)
    supplied = options.get("aad_prefix")
    return {
        "id": name,
        "file": f"{file}.parquet",
        "verifier": f"{scheme or 'ed25519'}.pub",
        "algorithm": options.get("encryption_algorithm", "AES_GCM_V1"),
        "aad_prefix": None if supplied is None else supplied.hex(),
        "expect": "ok" if name in FILES and scheme else "writer-signature",
    }


if __name__ == "__main__":
    build()

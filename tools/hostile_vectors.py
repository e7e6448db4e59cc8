"""Parquet cases of contradictions, limits and newer formats: what readers meet beyond bit flips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from modcrypt.module_ids import ModuleType
from modcrypt.parquet.format import idl
from tools.module_vectors import PREFIX
from tools.vector_files import (
    BY_NAME,
    CTR_V1,
    GCM_V1,
    address,
    case,
    encrypt_base,
    first,
    footer_patch,
    footer_start,
    open_module,
    plain,
    reorder,
    replace_footer,
    reseal,
    resign,
)
from tools.vector_patches import Patch, fixed_bytes, flip, replace

T = ModuleType
Json = dict[str, Any]
UNIFORM, SIMPLE, SIGNED = "gcm-ef-uniform", "gcm-ef-simple", "gcm-pf-simple"
NUMBERS = "gcm-ef-numbers"
INSIDER = ("insider",)


def hostile_cases() -> Iterator[Json]:
    for maker in (
        extension_cases, page_kind_cases, ordinal_cases, label_cases, border_cases, module_cases,
        footer_cases, signature_cases, metadata_cases,
    ):  # fmt: skip
        yield from maker()


# --- foreign extensions ---------------------------------------------------------------------------

# Field header in long form: type binary, id 32767 as a zigzag varint; then four bytes.
EXTENSION = bytes.fromhex("08feff03") + b"\4fbft"


def extension_cases() -> Iterator[Json]:
    """Yield valid files with the extension field 32767, and one that carries it unauthenticated."""
    spec = "parquet-format, Binary Protocol Extensions"
    name = SIGNED
    data = encrypt_base(name)
    stop = len(data) - 8 - 28 - 1
    longer = (len(data) - 8 - footer_start(data) + len(EXTENSION)).to_bytes(4, "little")
    patches: list[Patch] = [
        {"at": stop, "remove": 0, "insert": EXTENSION.hex()},
        {"at": len(data) - 8 + len(EXTENSION), "remove": 4, "insert": longer.hex()},
    ]
    yield case(name, "extension-in-signed-footer", "FileMetaData carries an extension that the "
               "signature covers", sign_longer(name, patches), spec=spec, payload=plain("simple"),
               tags=("extension", "rows-only"))  # fmt: skip
    yield case(name, "extension-in-signed-footer-unsigned", "the same, added without the key",
               patches, "signature", spec="PME 5.5")  # fmt: skip
    name = SIMPLE
    data = encrypt_base(name)
    stop = (first(name, T.FOOTER).offset or 0) - 1
    yield case(name, "extension-in-crypto-metadata", "FileCryptoMetaData carries an extension: "
               "nothing authenticates it, and it changes nothing",
               [{"at": stop, "remove": 0, "insert": EXTENSION.hex()},
                {"at": len(data) - 8 + len(EXTENSION), "remove": 4, "insert": footer_size(
                    data, len(EXTENSION))}], spec=spec, tags=("unauthenticated",))  # fmt: skip
    start = footer_start(data)
    supply = data.index(b"\x12", start + 4 + 8)  # field 3 of the algorithm, a bool: false
    patches = [
        {"at": len(data) - 8, "remove": 4, "insert": footer_size(data, -1)},
        {"at": supply, "remove": 1, "insert": ""},
    ]
    yield case(name, "supply-aad-prefix-unset", "an optional field that arrow-rs leaves unset for "
               "false", patches, spec="PME 5.2")  # fmt: skip
    metadata = footer_of(name)
    yield case(name, "extension-in-encrypted-footer", "FileMetaData carries an extension, inside "
               "the encrypted footer", replace_footer(name, metadata[:-1] + EXTENSION + b"\0"),
               spec=spec, tags=("extension", "rows-only"))  # fmt: skip


def footer_size(data: bytes, more: int) -> str:
    return (len(data) - 8 - footer_start(data) + more).to_bytes(4, "little").hex()


def sign_longer(name: str, patches: list[Patch]) -> list[Patch]:
    """Sign a plaintext footer that grew; `resign` writes the length itself."""
    return resign(name, patches[:1])


def footer_of(name: str) -> bytes:
    """Return the plaintext of an encrypted footer."""
    return open_module(name, encrypt_base(name), first(name, T.FOOTER))


# --- unknown page kinds ---------------------------------------------------------------------------


def page_kind_cases() -> Iterator[Json]:
    """Yield cases whose first data page has another type in its sealed header."""
    spec = "PME 5, parquet.thrift PageType"
    kinds = {"unknown": (4, "a page type that no IDL has"), "index": (1, "an index page")}
    for kind, (number, comment) in kinds.items():
        patches = change_header(SIMPLE, partial(set_type, number))
        yield case(SIMPLE, f"page-kind-{kind}", f"{comment}: skipping it would lose its rows",
                   patches, "unsupported", tags=INSIDER, spec=spec)  # fmt: skip


def set_type(number: int, header: Any) -> None:
    header.type = number


def change_header(name: str, change: Callable[[Any], None], page: int = 0) -> list[Patch]:
    """Return the patch of a key holder who changes a page header of the first column."""
    module = first(name, T.DATA_PAGE_HEADER, column=0, page=page)
    header = idl.decode("PageHeader", open_module(name, encrypt_base(name), module))[0]
    change(header)
    return [reseal(name, module, idl.encode(header))]


# --- ordinals -------------------------------------------------------------------------------------


def ordinal_cases() -> Iterator[Json]:
    """Yield cases whose row group ordinals are not their positions."""
    spec = "PME 4.4.2, 5.2"
    for ordinal in (-1, 1, 32_767):
        patches = resign(
            SIGNED,
            [footer_patch(encrypt_base(SIGNED), partial(set_ordinal, ordinal), signature=28)],
        )
        yield case(SIGNED, f"row-group-ordinal-{ordinal}", "the first row group has another "
                   "ordinal than its position", patches, "format",
                   tags=INSIDER, spec=spec)  # fmt: skip
    patches = resign(SIGNED, [footer_patch(encrypt_base(SIGNED), drop_ordinals, signature=28)])
    yield case(SIGNED, "row-group-ordinals-absent", "the field is optional; parquet-java needs it",
               patches, tags=("unauthenticated", "rows-only"), spec=spec)  # fmt: skip
    for name in (SIMPLE, UNIFORM):
        metadata = idl.decode("FileMetaData", footer_of(name))[0]
        reorder(metadata)
        yield case(name, f"{name.rpartition('-')[2]}-row-groups-reordered", "in an encrypted "
                   "footer, by a holder of its key", replace_footer(name, idl.encode(metadata)),
                   "format", tags=INSIDER, spec="PME 5.2")  # fmt: skip
        for position, row_group in enumerate(metadata.row_groups):
            row_group.ordinal = position
        yield case(name, f"{name.rpartition('-')[2]}-row-groups-renumbered", "in an encrypted "
                   "footer, by a holder of its key", replace_footer(name, idl.encode(metadata)),
                   "tag", tags=INSIDER, spec="PME 4.4.2",
                   module=address(name, (T.DATA_PAGE_HEADER, 1, 0, 0)))  # fmt: skip


def set_ordinal(number: int, metadata: Any) -> None:
    metadata.row_groups[0].ordinal = number


def drop_ordinals(metadata: Any) -> None:
    for row_group in metadata.row_groups:
        row_group.ordinal = None


# --- the name of the algorithm --------------------------------------------------------------------


def label_cases() -> Iterator[Json]:
    """Yield cases in which GCM pages pass for CTR pages, in files of a single key."""
    both = {"algorithms": [GCM_V1, CTR_V1]}
    for name in (UNIFORM, SIMPLE, NUMBERS):
        data = encrypt_base(name)
        at = footer_start(data) + 1
        short = name.removeprefix("gcm-ef-")
        label = replace(at, data[at : at + 1], b"\x2c")
        first_page = address(name, (T.DATA_PAGE, 0, 0, 0))
        yield case(name, f"{short}-gcm-relabelled-ctr", "pages under GCM are opened as CTR: "
                   "garbage of the attacker's making", [label],
                   "format", properties=both, spec="PME 4.2", tags=("ctr",),
                   module=first_page)  # fmt: skip
        page = first(name, T.DATA_PAGE)
        at = (page.offset or 0) + 16
        old = data[at : at + page.size - 16]
        yield case(name, f"{short}-gcm-page-shifted-into-ctr", "16 bytes before the ciphertext, "
                   "and no tag: the values come out, with bit flips of the attacker's choice",
                   [label, replace(at, old, bytes(16) + old[:-16])], "format", properties=both,
                   spec="PME 4.2", tags=("ctr",), module=first_page)  # fmt: skip


# --- the border between prefix and file-unique ----------------------------------------------------


def border_cases() -> Iterator[Json]:
    """Yield cases that move a byte between AAD prefix and aad_file_unique."""
    name = "prefix-not-stored"
    data = encrypt_base(name)
    unique = file_unique(name)
    at = data.index(unique, footer_start(data)) - 1
    size = len(unique)
    longer = bytes([size + 1]) + PREFIX[-1:] + unique
    yield case(name, "border-moved-into-file-unique", "a file stored as part.10 passes for part.1",
               grow(data, at, data[at : at + 1 + size], longer), "aad-prefix",
               properties={"aad_prefix": PREFIX[:-1].hex()}, spec="PME 4.4",
               tags=("policy",))  # fmt: skip
    shorter = bytes([size - 1]) + unique[1:]
    yield case(name, "border-moved-out-of-file-unique", "a byte of file-unique passes for the end "
               "of the prefix", grow(data, at, data[at : at + 1 + size], shorter), "aad-prefix",
               properties={"aad_prefix": (PREFIX + unique[:1]).hex()}, spec="PME 4.4",
               tags=("policy",))  # fmt: skip


def file_unique(name: str) -> bytes:
    """Return aad_file_unique: the first random bytes that are drawn for a base."""
    return fixed_bytes(f"random {name}", 8)


def grow(data: bytes, at: int, old: bytes, new: bytes) -> list[Patch]:
    """Return patches of FileCryptoMetaData that keep the length in the tail right."""
    more = len(new) - len(old)
    return [
        {"at": len(data) - 8, "remove": 4, "insert": footer_size(data, more)},
        replace(at, old, new),
    ]


# --- modules --------------------------------------------------------------------------------------


def module_cases() -> Iterator[Json]:
    """Yield cases of length fields that declare far too much or too little."""
    name = UNIFORM
    data = encrypt_base(name)
    opens = {T.COLUMN_INDEX: "page-indexes", T.BLOOM_FILTER_HEADER: "bloom-filters"}
    sizes = {"1-gib": 1 << 30, "4-gib": 0xFFFFFFFF, "zero": 0, "27": 27}
    for kind in (T.DATA_PAGE_HEADER, T.DATA_PAGE, T.COLUMN_INDEX, T.BLOOM_FILTER_HEADER):
        module = first(name, kind)
        named = None if kind is T.BLOOM_FILTER_HEADER else address(name, module)
        for size_name, size in sizes.items():
            at = module.offset or 0
            yield case(name, f"{kind.name.lower().replace('_', '-')}-length-{size_name}",
                       f"the length field says {size:,}",
                       [replace(at, data[at : at + 4], size.to_bytes(4, "little"))],
                       "truncation", module=named, opens=opens.get(kind))  # fmt: skip


def footer_cases() -> Iterator[Json]:
    """Yield encrypted footers that a key holder pads, and tails that lie."""
    name = SIMPLE
    data = encrypt_base(name)
    metadata = footer_of(name)
    yield case(name, "footer-padded", "zeros after the Thrift struct, as parquet-java leaves them",
               replace_footer(name, metadata + bytes(100)), tags=("java-padding", "rows-only"),
               spec="PME 5.4")  # fmt: skip
    yield case(name, "footer-empty", "a footer module without plaintext",
               replace_footer(name, b""), "format", tags=INSIDER, spec="PME 5.4")  # fmt: skip
    yield case(name, "footer-cut", "the Thrift struct lacks its last byte",
               replace_footer(name, metadata[:-1]), "format", tags=INSIDER,
               spec="PME 5.4")  # fmt: skip
    for label, size in (("zero", 0), ("4-gib", 0xFFFFFFFF)):
        new = size.to_bytes(4, "little")
        yield case(name, f"tail-length-{label}", "the length before the last magic",
                   [replace(len(data) - 8, data[-8:-4], new)],
                   "format" if size == 0 else "limit", spec="PME 5.4")  # fmt: skip
    yield case(name, "bytes-appended", "bytes follow the last magic",
               [{"at": len(data), "remove": 0, "insert": "00" * 16}], "format",
               spec="PME 5.4")  # fmt: skip
    metadata_struct = idl.decode("FileMetaData", metadata)[0]
    metadata_struct.row_groups[0].columns[0].crypto_metadata = None
    yield case(name, "column-declared-plaintext", "by a holder of the footer key: encrypted pages "
               "of a column that the footer calls unencrypted",
               replace_footer(name, idl.encode(metadata_struct)), "format", tags=INSIDER,
               spec="PME 5.2")  # fmt: skip


def signature_cases() -> Iterator[Json]:
    """Yield altered plaintext footers, for readers without column keys."""
    name, spec = SIGNED, "PME 5.5"
    data = encrypt_base(name)
    end = len(data) - 8
    made_by = data.index(b"parquet-cpp", footer_start(data))
    for what, at in (("created-by", made_by), ("nonce", end - 28), ("tag", end - 1)):
        yield case(name, f"simple-signed-footer-{what}-flipped", "one bit of what the signature "
                   "covers or is", [flip(data, at)], "signature", spec=spec)  # fmt: skip
    yield case(name, "simple-signature-stripped", "encryption algorithm and signature removed: the "
               "file looks like a plaintext one", [footer_patch(data, strip, signature=0)],
               "plaintext", spec=spec)  # fmt: skip
    yield case(name, "simple-plaintext-file", "a plaintext file in the encrypted one's place",
               expect="plaintext", file="plain/simple.parquet", spec="PME 5.4")  # fmt: skip
    yield case(SIMPLE, "simple-plaintext-file-ef", "a plaintext file in the encrypted one's place",
               expect="plaintext", file="plain/simple.parquet", spec="PME 5.4")  # fmt: skip
    for base in (SIMPLE, SIGNED):
        mode = base[4:6]
        wrong = "tag" if mode == "ef" else "signature"
        yield case(base, f"simple-footer-key-wrong-{mode}", "another key of the same length",
                   expect=wrong, footer="other-128",
                   module={"type": "FOOTER"} if mode == "ef" else None)  # fmt: skip


def strip(metadata: Any) -> None:
    metadata.encryption_algorithm = None


# --- metadata of columns without a key ------------------------------------------------------------


def metadata_cases() -> Iterator[Json]:
    """Yield cases that ask for the metadata of all columns with the footer key alone."""
    for base in ("gcm-ef-columns", "gcm-pf-columns", "gcm-ef-mixed", "gcm-pf-mixed"):
        keyless = list(BY_NAME[base].columns)
        yield case(base, f"metadata-without-column-keys-{base[4:]}", "reading the metadata of a "
                   "column without its key must fail or leave the column out, in order",
                   columns={}, expect="no-key", column=keyless[0], operation="metadata",
                   control=None, keyless=keyless, spec="PME 5.3", tags=("metadata",))  # fmt: skip

"""Parquet cases of contradictions, limits and newer formats: what readers meet beyond bit flips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from modcrypt.module_ids import ModuleType
from modcrypt.parquet.format import idl
from tools.vector_files import (
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
from tools.vector_patches import Patch, flip, replace

T = ModuleType
Json = dict[str, Any]
UNIFORM, SIMPLE, SIGNED = "gcm-ef-uniform", "gcm-ef-simple", "gcm-pf-simple"
INSIDER = ("insider",)


def hostile_cases() -> Iterator[Json]:
    for maker in (
        extension_cases, page_kind_cases, ordinal_cases, label_cases, footer_cases,
        signature_cases,
    ):  # fmt: skip
        yield from maker()


# --- foreign extensions ---------------------------------------------------------------------------

# Field header in long form: type binary, id 32767 as a zigzag varint; then four bytes.
EXTENSION = bytes.fromhex("08feff03") + b"\4fbft"


def extension_cases() -> Iterator[Json]:
    """Yield valid files with the extension field 32767."""
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
    name = SIMPLE
    data = encrypt_base(name)
    stop = (first(name, T.FOOTER).offset or 0) - 1
    yield case(name, "extension-in-crypto-metadata", "FileCryptoMetaData carries an extension: "
               "nothing authenticates it, and it changes nothing",
               [{"at": stop, "remove": 0, "insert": EXTENSION.hex()},
                {"at": len(data) - 8 + len(EXTENSION), "remove": 4, "insert": footer_size(
                    data, len(EXTENSION))}], spec=spec, tags=("unauthenticated",))  # fmt: skip
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
    """Yield a case without row group ordinals, and some with those of other positions."""
    spec = "PME 4.4.2, 5.2"
    patches = resign(SIGNED, [footer_patch(encrypt_base(SIGNED), drop_ordinals, signature=28)])
    yield case(SIGNED, "row-group-ordinals-absent", "the field is optional; parquet-java needs it",
               patches, tags=("unauthenticated", "rows-only"), spec=spec)  # fmt: skip
    for name in (SIMPLE, UNIFORM):
        metadata = idl.decode("FileMetaData", footer_of(name))[0]
        reorder(metadata)
        for position, row_group in enumerate(metadata.row_groups):
            row_group.ordinal = position
        yield case(name, f"{name.rpartition('-')[2]}-row-groups-renumbered", "in an encrypted "
                   "footer, by a holder of its key", replace_footer(name, idl.encode(metadata)),
                   "tag", tags=INSIDER, spec="PME 4.4.2",
                   module=address(name, (T.DATA_PAGE_HEADER, 1, 0, 0)))  # fmt: skip


def drop_ordinals(metadata: Any) -> None:
    for row_group in metadata.row_groups:
        row_group.ordinal = None


# --- the name of the algorithm --------------------------------------------------------------------


def label_cases() -> Iterator[Json]:
    """Yield cases in which the label of GCM pages says CTR, in files of a single key."""
    both = {"algorithms": [GCM_V1, CTR_V1]}
    for name in (UNIFORM, SIMPLE):
        data = encrypt_base(name)
        at = footer_start(data) + 1
        short = name.removeprefix("gcm-ef-")
        label = replace(at, data[at : at + 1], b"\x2c")
        first_page = address(name, (T.DATA_PAGE, 0, 0, 0))
        yield case(name, f"{short}-gcm-relabelled-ctr", "pages under GCM are opened as CTR: "
                   "garbage of the attacker's making", [label],
                   "format", properties=both, spec="PME 4.2", tags=("ctr",),
                   module=first_page)  # fmt: skip


# --- footers --------------------------------------------------------------------------------------


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
    for base in (SIMPLE, SIGNED):
        mode = base[4:6]
        wrong = "tag" if mode == "ef" else "signature"
        yield case(base, f"simple-footer-key-wrong-{mode}", "another key of the same length",
                   expect=wrong, footer="other-128",
                   module={"type": "FOOTER"} if mode == "ef" else None)  # fmt: skip


def strip(metadata: Any) -> None:
    metadata.encryption_algorithm = None

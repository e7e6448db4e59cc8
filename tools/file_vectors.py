"""The Parquet cases of spec-vectors/: each has one fault. Expected error codes are by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from modcrypt.module_ids import ModuleType
from modcrypt.parquet.format import idl
from tools.hostile_vectors import hostile_cases
from tools.module_vectors import PREFIX, WITH_PAGE, flip_bit, slug
from tools.vector_files import (
    BASES,
    BY_NAME,
    CTR_V1,
    GCM_V1,
    address,
    case,
    encrypt_base,
    first,
    footer_patch,
    footer_start,
    key_of,
    leaves,
    modules,
    open_module,
    plain,
    reorder,
    reseal,
    resign,
    swap,
)
from tools.vector_patches import Patch, apply, fixed_bytes, flip, replace
from tools.verify_pme import Module

T = ModuleType
Json = dict[str, Any]

REGIONS = {
    "length": "the length field is one off",
    "nonce": "one bit of the nonce flipped",
    "ciphertext": "one bit of the ciphertext flipped",
    "tag": "one bit of the tag flipped",
}


def region_offset(module: Module, region: str) -> int:
    assert module.offset is not None
    middle = 16 + (module.size - 32) // 2
    places = {"length": 0, "nonce": 4, "ciphertext": middle, "tag": module.size - 1}
    return module.offset + places[region]


# Nothing but its own length field says where a header module ends: the reader takes a byte more
# or less for it, which does not authenticate. All other lengths are stored a second time elsewhere;
# the tests of modcrypt's parsers compare the two.
TOLD_ONCE = {T.DATA_PAGE_HEADER, T.DICTIONARY_PAGE_HEADER, T.BLOOM_FILTER_HEADER}


def good_cases() -> Iterator[Json]:
    for base in BASES:
        counts = Counter(T(m.type).name for m in modules(base.name))
        yield case(base.name, base.name, base.comment, spec="PME 5", modules=dict(counts))


def fault_target(kind: ModuleType) -> str:
    """Return the base whose modules of a type are modified.

    Column metadata inside a sealed footer can't be reached; in a signed one the signature stands
    before it, so the holder of the footer key must be the one who altered it.
    """
    return "gcm-pf-mixed" if kind is T.COLUMN_METADATA else "gcm-ef-mixed"


UNIFORM = ("gcm-ef-uniform", [kind for kind in T if kind is not T.COLUMN_METADATA])
SIMPLE = ("gcm-ef-simple", [T.FOOTER, T.DATA_PAGE, T.DATA_PAGE_HEADER])
"""Bases for readers without column keys, or without several pages per chunk."""


def region_cases() -> Iterator[Json]:
    """Yield cases with one changed bit for every region of every module type."""
    for kind in T:
        yield from regions_of(fault_target(kind), kind, "")
    for name, kinds in (UNIFORM, SIMPLE):
        for kind in kinds:
            yield from regions_of(name, kind, name.rpartition("-")[2] + "-")


def regions_of(name: str, kind: ModuleType, prefix: str) -> Iterator[Json]:
    """Yield the cases of one module type in one base."""
    module, in_footer = first(name, kind), kind is T.COLUMN_METADATA
    for region, comment in REGIONS.items():
        patches = [flip(encrypt_base(name), region_offset(module, region))]
        if region == "length" and kind not in TOLD_ONCE:
            continue
        yield case(
            name, f"{prefix}{slug(kind)}-{region}-flipped",
            comment + (", and the footer signed again" if in_footer else ""),
            resign(name, patches) if in_footer else patches,
            "tag", module=address(name, module),
        )  # fmt: skip


AXES = ("page", "column", "row_group")
# Modules of every type fit another module's place of the same size; these have no such place.
NO_SWAP = {(kind, "page") for kind in T if kind not in WITH_PAGE} | {
    (T.FOOTER, "column"), (T.FOOTER, "row_group"),
}  # fmt: skip


def swap_cases() -> Iterator[Json]:
    """Yield cases that exchange modules of equal size and key, by each ordinal and across files."""
    for kind in T:
        yield from swaps_of(fault_target(kind), kind, AXES, "")
    for kind in UNIFORM[1]:
        yield from swaps_of(UNIFORM[0], kind, AXES, "uniform-")
    for kind in SIMPLE[1]:
        yield from swaps_of(SIMPLE[0], kind, ("row_group",), "simple-")


def swaps_of(name: str, kind: ModuleType, axes: tuple[str, ...], prefix: str) -> Iterator[Json]:
    """Yield the cases of one module type in one base."""
    in_footer = kind is T.COLUMN_METADATA
    for axis in axes:
        if (kind, axis) in NO_SWAP:
            continue
        a, b = pair(name, kind, axis)
        patches = [swap(a, b)]
        yield case(
            name, f"{prefix}{slug(kind)}-swapped-across-{axis.replace('_', '-')}s",
            f"two modules that differ in the {axis.replace('_', ' ')} alone, exchanged",
            resign(name, patches) if in_footer else patches,
            "tag", module=address(name, a), spec="PME 4.4.2",
        )  # fmt: skip
    module = first(name, kind)
    start, end = module.offset or 0, (module.offset or 0) + module.size
    twin = encrypt_base(name, " twin")
    patches = [replace(start, encrypt_base(name)[start:end], twin[start:end])]
    yield case(
        name, f"{prefix}{slug(kind)}-of-another-file", "the same module of a file with the same "
        "keys and content, but another aad_file_unique",
        resign(name, patches) if in_footer else patches, "tag",
        module=address(name, module), spec="PME 4.4.2",
    )  # fmt: skip


def pair(name: str, kind: ModuleType, axis: str) -> tuple[Module, Module]:
    """Return the first two modules of equal size and key whose addresses differ in one ordinal."""
    of_kind = [m for m in modules(name) if m.type == kind and m.offset is not None]
    for a, b in combinations(of_kind, 2):
        differ = [axis for axis in AXES if getattr(a, axis) != getattr(b, axis)]
        if differ == [axis] and a.size == b.size and key_of(name, a) == key_of(name, b):
            return a, b
    raise LookupError(f"{name} has no {slug(kind)} modules to swap across {axis}s")


def signature_cases() -> Iterator[Json]:
    name, spec = "gcm-pf-mixed", "PME 5.5"
    data = encrypt_base(name)
    end = len(data) - 8
    made_by = data.index(b"parquet-cpp", footer_start(data))
    for what, at in (("created-by", made_by), ("nonce", end - 28), ("tag", end - 1)):
        yield case(
            name, f"signed-footer-{what}-flipped", "one bit of what the signature covers or is",
            [flip(data, at)], "signature", spec=spec,
        )  # fmt: skip
    yield case(
        name, "signed-footer-unchecked", "a reader that asks for no check takes an altered footer",
        [flip(data, made_by)], spec=spec, properties={"check_footer_integrity": False},
        tags=("policy",), payload=plain("flat").replace(b"parquet-cpp", b"qarquet-cpp"),
    )  # fmt: skip
    yield case(
        name, "signature-stripped", "encryption algorithm and signature removed: without them "
        "the file looks like a plaintext one",
        [footer_patch(data, strip_algorithm, signature=0)], "plaintext", spec=spec,
    )  # fmt: skip
    yield case(
        name, "column-metadata-removed", "the footer is not signed again",
        [footer_patch(data, drop_column_metadata, signature=28)], "signature", spec="PME 5.3, 5.5",
    )  # fmt: skip
    yield case(
        name, "row-groups-reordered-and-renumbered", "by a holder of the footer key",
        resign(name, [footer_patch(data, renumber, signature=28)]), "tag",
        module=address(name, (T.COLUMN_METADATA, 0, 0, None)), spec="PME 4.4.2",
    )  # fmt: skip


def strip_algorithm(metadata: Any) -> None:
    metadata.encryption_algorithm = None


def drop_column_metadata(metadata: Any) -> None:
    metadata.row_groups[0].columns[0].encrypted_column_metadata = None


def renumber(metadata: Any) -> None:
    reorder(metadata)
    for position, row_group in enumerate(metadata.row_groups):
        row_group.ordinal = position


def key_cases() -> Iterator[Json]:
    mixed, mixed_pf = BY_NAME["gcm-ef-mixed"].columns, "gcm-pf-mixed"
    without_zip = {path: key for path, key in mixed.items() if path != "address.zip"}
    sealed_id = (T.COLUMN_METADATA, 0, 0, None)
    for name in ("gcm-ef-mixed", mixed_pf):
        mode = name[4:6]
        wrong = "tag" if mode == "ef" else "signature"
        footer = {"type": "FOOTER"} if mode == "ef" else None
        yield case(name, f"footer-key-absent-{mode}", "no footer key is given", expect="no-key",
                   footer=None, spec="PME 4.3")  # fmt: skip
        yield case(name, f"footer-key-wrong-{mode}", "another key of the same length",
                   expect=wrong, footer="other-128", module=footer)  # fmt: skip
        yield case(name, f"column-key-absent-{mode}", "no key for one column", expect="no-key",
                   columns=without_zip, column="address.zip", spec="PME 4.3")  # fmt: skip
        yield case(name, f"column-key-absent-dropped-{mode}", "the reader leaves the column out",
                   columns=without_zip, drops=("address.zip",), tags=("policy",),
                   properties={"on_missing_key": "drop"}, spec="PME 4.3")  # fmt: skip
        yield case(name, f"column-key-wrong-{mode}", "another key of the same length",
                   expect="tag", columns={**mixed, "buyer": "other-128"},
                   module=address(name, sealed_id))  # fmt: skip
    yield case("gcm-pf-columns", "footer-key-absent-unchecked", "a plaintext footer can be read "
               "without its key, unchecked", footer=None, tags=("policy",), spec="PME 5.5",
               properties={"check_footer_integrity": False})  # fmt: skip
    data = encrypt_base("gcm-ef-columns")
    yield case("gcm-ef-columns", "footer-key-metadata-flipped", "key metadata is not "
               "authenticated; with keys given it carries nothing", tags=("unauthenticated",),
               patches=[flip(data, data.index(b"kf", footer_start(data)))],
               spec="PME 4.3")  # fmt: skip


def prefix_cases() -> Iterator[Json]:
    spec = "PME 4.4.1"
    footer = {"type": "FOOTER"}

    def prefix_of(prefix: bytes | None) -> Json:
        return {"aad_prefix": None if prefix is None else prefix.hex()}

    wrong = b"table/part.11"
    yield case("prefix-stored", "prefix-stored-and-given", "the reader expects the stored prefix",
               properties=prefix_of(PREFIX), spec=spec)  # fmt: skip
    yield case("prefix-stored", "prefix-stored-another-given", "the reader expects another one",
               expect="aad-prefix", properties=prefix_of(wrong), spec=spec)  # fmt: skip
    yield case("prefix-not-stored", "prefix-not-stored-none-given", "the reader must supply it",
               expect="aad-prefix", properties=prefix_of(None), spec=spec)  # fmt: skip
    yield case("prefix-not-stored", "prefix-not-stored-another-given", "a wrong one is supplied",
               expect="tag", properties=prefix_of(wrong), module=footer, spec=spec)  # fmt: skip
    yield case("prefix-not-stored-pf", "prefix-not-stored-none-given-pf", "the reader must "
               "supply it", expect="aad-prefix", properties=prefix_of(None), spec=spec)  # fmt: skip
    yield case("prefix-not-stored-pf", "prefix-not-stored-another-given-pf", "a wrong one is "
               "supplied", expect="signature", properties=prefix_of(wrong), spec=spec)  # fmt: skip
    yield case("gcm-ef-mixed", "prefix-given-but-not-used", "the file was written without one",
               expect="aad-prefix", properties=prefix_of(PREFIX), spec=spec,
               tags=("policy",))  # fmt: skip
    data = encrypt_base("prefix-stored")
    at = data.index(PREFIX, footer_start(data))
    yield case("prefix-stored", "prefix-stored-flipped", "one bit of the stored prefix",
               [flip(data, at)], "tag", module=footer, spec=spec)  # fmt: skip
    data = encrypt_base("gcm-ef-mixed")
    at = data.index(UNUSED_PREFIX, footer_start(data)) + 8
    patch = {"at": at, "remove": 1, "insert": "11"}
    yield case("gcm-ef-mixed", "supply-aad-prefix-set", "the file claims that it needs a prefix",
               [patch], "aad-prefix", spec="PME 5.2")  # fmt: skip
    yield case("gcm-ef-mixed", "file-unique-flipped", "one bit of aad_file_unique",
               [flip(data, at - 1)], "tag", module=footer, spec="PME 4.4.2")  # fmt: skip
    start, size = footer_start(data), len(data) - 8 - footer_start(data)
    removed = data[start : at + 1].replace(b"\x28\x08" + UNUSED_PREFIX + b"\x12", b"\x32")
    shorter = (size - (at + 1 - start - len(removed))).to_bytes(4, "little")
    yield case("gcm-ef-mixed", "file-unique-absent", "DuckDB writes such files, with no AAD",
               [replace(len(data) - 8, data[-8:-4], shorter),
                replace(start, data[start : at + 1], removed)],
               "unsupported", spec="PME 4.4.2")  # fmt: skip


UNUSED_PREFIX = fixed_bytes("random gcm-ef-mixed", 8)  # file-unique is the first that is drawn


def algorithm_cases() -> Iterator[Json]:
    spec = "PME 4.2"
    gcm_file, ctr_file = encrypt_base("gcm-ef-mixed"), encrypt_base("ctr-ef-uniform")
    start = footer_start(gcm_file)
    # FileCryptoMetaData begins with field 1, the union; its member's id is the algorithm.
    assert gcm_file[start : start + 2] == b"\x1c\x1c"

    def relabel(data: bytes, member: str) -> list[Patch]:
        return [replace(footer_start(data) + 1, data[footer_start(data) + 1 :][:1],
                        bytes.fromhex(member))]  # fmt: skip

    yield case("ctr-ef-mixed", "ctr-not-accepted", "CTR must be accepted by name",
               expect="unsupported", properties={"algorithms": [GCM_V1]}, spec=spec,
               tags=("policy", "algorithm-choice"))  # fmt: skip
    yield case("gcm-ef-mixed", "gcm-relabelled-ctr", "the name is not authenticated, and CTR "
               "would not look at tags", relabel(gcm_file, "2c"), "unsupported", spec=spec,
               tags=("policy", "algorithm-choice"))  # fmt: skip
    both = {"algorithms": [GCM_V1, CTR_V1]}
    yield case("gcm-ef-mixed", "gcm-relabelled-ctr-accepted", "CTR is accepted, but an "
               "uncompressed page opens to 16 bytes too many", relabel(gcm_file, "2c"),
               "format", properties=both, spec=spec, tags=("policy",),
               module=address("gcm-ef-mixed", (T.DATA_PAGE, 0, 0, 0)))  # fmt: skip
    compressed = encrypt_base("gcm-ef-uniform-192")
    yield case("gcm-ef-uniform-192", "gcm-relabelled-ctr-accepted-compressed", "CTR is accepted; "
               "no size tells for a compressed page, but its tag matches",
               relabel(compressed, "2c"), "integrity", properties=both, spec=spec, tags=("policy",),
               module=address("gcm-ef-uniform-192", (T.DATA_PAGE, 0, 0, 0)))  # fmt: skip
    yield case("ctr-ef-uniform", "ctr-relabelled-gcm", "the first page has no tag",
               relabel(ctr_file, "1c"), "tag", properties=both, spec=spec,
               module=address("ctr-ef-uniform", (T.DATA_PAGE, 0, 0, 0)))  # fmt: skip
    pf = encrypt_base("gcm-pf-mixed")
    at = pf.index(fixed_bytes("random gcm-pf-mixed", 8), footer_start(pf)) - 3
    assert pf[at : at + 3] == b"\x1c\x28\x08"
    yield case("gcm-pf-mixed", "gcm-relabelled-ctr-signed", "the signature covers the name",
               [replace(at, b"\x1c", b"\x2c")], "signature", properties=both,
               spec=spec)  # fmt: skip


def ctr_page_cases() -> Iterator[Json]:
    """Yield cases of page bodies with CTR: only changed lengths are detected."""
    name, tags = "ctr-ef-mixed", ("ctr-malleable",)
    data = encrypt_base(name)
    for kind in (T.DATA_PAGE, T.DICTIONARY_PAGE):
        module = first(name, kind)
        at = module.offset or 0
        for region, place in (("nonce", at + 4), ("ciphertext", at + module.size - 1)):
            patches = [flip(data, place)]
            payload = other_payload(name, patches, [module])
            yield case(name, f"ctr-{slug(kind)}-{region}-flipped", f"{REGIONS[region]}: nothing "
                       "authenticates it, other values come out", patches, payload=payload,
                       spec="PME 4.2.2", tags=tags)  # fmt: skip
    a, b = pair(name, T.DATA_PAGE, "page")
    patches = [swap(a, b)]
    yield case(name, "ctr-data-page-swapped-across-pages", "CTR pages have no AAD: rows are "
               "exchanged unseen", patches, payload=other_payload(name, patches, [a, b]),
               spec="PME 4.2.2", tags=tags)  # fmt: skip
    header = first(name, T.DATA_PAGE_HEADER)
    yield case(name, "ctr-data-page-header-ciphertext-flipped", "page headers stay under GCM",
               [flip(data, region_offset(header, "ciphertext"))], "tag",
               module=address(name, header), spec="PME 4.2.2")  # fmt: skip
    page = first("crc-ctr", T.DATA_PAGE)
    crc_data = encrypt_base("crc-ctr")
    yield case("crc-ctr", "ctr-data-page-with-crc-flipped", "the CRC in the sealed header shows it",
               [flip(crc_data, (page.offset or 0) + page.size - 1)], "checksum",
               module=address("crc-ctr", page), spec="PME 4.2.2")  # fmt: skip


def other_payload(name: str, patches: list[Patch], changed: list[Module]) -> bytes:
    """Return the plaintext file with other bytes in the pages that `patches` changed."""
    payload, data = plain(BY_NAME[name].plain), encrypt_base(name)
    after = apply(data, patches)
    pieces = []
    for module in changed:
        old = open_module(name, data, module)
        assert module.row_group == 0  # so that the first place is the right one
        pieces.append((payload.index(old), open_module(name, after, module)))
    for at, new in pieces:
        payload = payload[:at] + new + payload[at + len(new) :]
    assert payload != plain(BY_NAME[name].plain)
    return payload


def v2_cases() -> Iterator[Json]:
    name = "v2-levels-clear"
    data = encrypt_base(name)
    tags_column = leaves(name).index("tags.list.element")
    page = first(name, T.DATA_PAGE, column=tags_column, page=0)
    at = page.offset or 0
    header = open_module(name, data, first(name, T.DATA_PAGE_HEADER, column=tags_column, page=0))
    v2 = idl.decode("PageHeader", header)[0].data_page_header_v2
    levels = v2.repetition_levels_byte_length + v2.definition_levels_byte_length
    body = data[at - levels : at] + open_module(name, data, page)  # the first page: the first place
    level = plain("v2").index(body) + levels - 1
    yield case(name, "v2-clear-level-flipped", "levels in clear are not authenticated: rows get "
               "other lengths unseen", [flip(data, at - 1)], payload=flip_bit(plain("v2"), level),
               tags=("unauthenticated",))  # fmt: skip
    yield case(name, "v2-levels-clear-value-flipped", "the values are sealed",
               [flip(data, at + 16)], "tag", module=address(name, page))  # fmt: skip
    whole = first("v2-whole", T.DATA_PAGE, column=tags_column, page=0)
    yield case("v2-whole", "v2-whole-level-flipped", "sealed whole, levels are authenticated",
               [flip(encrypt_base("v2-whole"), (whole.offset or 0) + 16)], "tag",
               module=address("v2-whole", whole))  # fmt: skip


def insider_cases() -> Iterator[Json]:
    """Yield a case in which a key holder encrypts a contradiction between parts of the file."""
    name = "gcm-ef-mixed"
    module = first(name, T.BLOOM_FILTER_HEADER)
    header = idl.decode("BloomFilterHeader", open_module(name, encrypt_base(name), module))[0]
    header.numBytes += 1
    yield case(name, "bloom-filter-header-lies", "the bitset has another size",
               [reseal(name, module, idl.encode(header))], "format", tags=("insider",),
               opens="bloom-filters")  # fmt: skip


def file_cases() -> Iterator[Json]:
    name = "gcm-ef-mixed"
    data = encrypt_base(name)
    size = len(data)
    yield case(name, "tail-magic-par1", "the magics of head and end differ",
               [replace(size - 4, b"PARE", b"PAR1")], "format", spec="PME 5.4")  # fmt: skip
    yield case(name, "last-byte-missing", "the file is cut short",
               [{"at": size - 1, "remove": 1, "insert": ""}], "format", spec="PME 5.4")  # fmt: skip
    yield case(name, "footer-length-huge", "the tail declares more bytes than the file has",
               [replace(size - 8, data[-8:-4], b"\xff\xff\xff\x7f")], "limit",
               spec="PME 5.4")  # fmt: skip
    yield case(name, "empty-file", "no bytes at all",
               [{"at": 0, "remove": size, "insert": ""}], "format", spec="PME 5.4")  # fmt: skip


def parquet_cases() -> list[Json]:
    makers = (
        good_cases, region_cases, swap_cases, signature_cases, key_cases, prefix_cases,
        algorithm_cases, ctr_page_cases, v2_cases, insider_cases, file_cases,
        hostile_cases,
    )  # fmt: skip
    return [made for maker in makers for made in maker()]

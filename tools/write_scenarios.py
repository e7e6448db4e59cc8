"""The write scenarios of spec-vectors/write.json: what a writer is asked to make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.ags1_vectors import BASES as STREAMS
from tools.ags1_vectors import plaintext
from tools.module_vectors import PREFIX
from tools.pkmt1_vectors import MASTERS
from tools.vector_files import EACH, MIXED, describe_rows, plain

Json = dict[str, Any]
STORED: Json = {"aad_prefix": PREFIX.hex()}
UNSTORED: Json = STORED | {"store_aad_prefix": False}
CTR: Json = {"algorithm": "AES_GCM_CTR_V1"}
SIGNED: Json = {"plaintext_footer": True}
NOTE: Json = {"plaintext_columns": ["note"]}
SMALL_PAGES: Json = {"max_rows_per_page": 2, "write_page_index": True}


def scenarios() -> list[Json]:
    return [*parquet_scenarios(), *pkmt1_scenarios(), *ags1_scenarios()]


def parquet_scenarios() -> Iterator[Json]:
    """Yield Parquet files under keys that are given."""

    def scenario(
        name: str, comment: str, table: str, options: Json, *features: str,
        footer: str = "footer-128", columns: dict[str, str] | None = None,
        spec: str = "PME 5", outcome: str = "written", severity: str = "feature",
    ) -> Json:  # fmt: skip
        signed = options.get("plaintext_footer", False)
        found = {"plaintext-footer" if signed else "encrypted-footer", *features}
        return {
            "id": name, "comment": comment, "spec": spec, "format": "parquet",
            "features": sorted(found), "severity": severity, "outcome": outcome,
            "input": f"parquet/plain/{table}.parquet", "rows": describe_rows(plain(table)),
            "keys": {"footer": footer, "columns": columns or {}}, "options": options,
        }  # fmt: skip

    yield scenario("ef-uniform", "all columns under the footer key", "small", {})
    yield scenario("pf-uniform", "the same with a signed plaintext footer", "small", SIGNED)
    for bits in ("192", "256"):
        yield scenario(f"ef-uniform-{bits}", f"a footer key of {bits} bits", "small", {},
                       f"aes-{bits}", footer=f"footer-{bits}", spec="PME 4.1")  # fmt: skip
    yield scenario("ctr-ef-uniform", "page bodies under CTR", "small", CTR, "ctr", spec="PME 4.2.2")
    yield scenario("ctr-pf-uniform", "the same with a signed plaintext footer", "small",
                   CTR | SIGNED, "ctr", spec="PME 4.2.2")  # fmt: skip
    yield scenario("ef-columns", "a key for each column", "small", {}, "column-keys", "aes-192",
                   "aes-256", columns=EACH, spec="PME 5.3")  # fmt: skip
    mixed = MIXED["columns"]
    several = ("column-keys", "footer-key-columns", "plaintext-columns", "nested-column-keys")
    for mode, options in (("ef", NOTE), ("pf", NOTE | SIGNED)):
        yield scenario(f"{mode}-mixed", "column keys, a column under the footer key, one in "
                       "plaintext", "flat", options, *several, columns=mixed,
                       spec="PME 5.2, 5.3")  # fmt: skip
    yield scenario("pf-columns", "a key for each column, and a signed plaintext footer", "small",
                   SIGNED, "column-keys", columns={"id": "column-a-128", "name": "column-b-128"},
                   spec="PME 5.5")  # fmt: skip
    for name, options in (("stored", STORED), ("not-stored", UNSTORED),
                          ("not-stored-pf", UNSTORED | SIGNED)):  # fmt: skip
        yield scenario(f"prefix-{name}", "an AAD prefix", "small", options, "aad-prefix",
                       spec="PME 4.4.1")  # fmt: skip
    for name, options in (("v2", {}), ("v2-ctr", CTR)):
        yield scenario(name, "data pages V2 with levels", "v2", options | {"data_page_version": 2},
                       "v2", *(["ctr"] if options else []), spec="PME 5")  # fmt: skip
    yield scenario("indexes", "several pages with column and offset indexes", "small", SMALL_PAGES,
                   "page-indexes")  # fmt: skip
    yield scenario("bloom-filter", "a Bloom filter for `buyer`", "flat",
                   {"bloom_filter_columns": ["buyer"]}, "bloom-filters")  # fmt: skip
    yield scenario("key-metadata", "key metadata for the footer and a column", "small",
                   {"footer_key_metadata": b"kf".hex(),
                    "column_key_metadata": {"id": b"kc".hex(), "name": b"kn".hex()}},
                   "key-metadata", "column-keys", "aes-192", "aes-256", columns=EACH,
                   spec="PME 4.3")  # fmt: skip
    yield scenario("row-groups", "two row groups", "flat", {"row_group_size": 4})
    yield scenario("empty", "no rows", "empty", {})
    yield scenario("types", "a column of every common type", "types", {})
    yield scenario("too-many-pages", "32,769 pages of a row: their ordinals do not fit an int16, "
                   "so the writer refuses, or writes fewer pages", "many", {"max_rows_per_page": 1},
                   "rows-per-page", spec="PME 4.4.2", outcome="either",
                   severity="security")  # fmt: skip


def pkmt1_scenarios() -> Iterator[Json]:
    """Yield Parquet files whose keys a key service wraps."""
    for double in (False, True):
        for external in (False, True):
            for column in (False, True):
                words = ("double" if double else "single", "external" if external else "internal")
                name = "-".join([*words, *(["column"] if column else [])])
                features = [*(["external-keys"] if external else []),
                            *(["column-keys", "plaintext-columns"] if column else [])]  # fmt: skip
                yield {
                    "id": f"pkmt1-{name}", "comment": f"{words[0]} wrapping, material {words[1]}",
                    "spec": "PKMT1, key material", "format": "pkmt1",
                    "features": ["encrypted-footer", *features], "severity": "feature",
                    "outcome": "written", "input": "parquet/plain/small.parquet",
                    "rows": describe_rows(plain("small")), "master_keys": MASTERS,
                    "options": {
                        "footer_master": "kf", "column_masters": {"name": "kc"} if column else {},
                        "plaintext_columns": ["id"] if column else [],
                        "double_wrapping": double, "internal_storage": not external,
                    },
                }  # fmt: skip


def ags1_scenarios() -> Iterator[Json]:
    """Yield AGS1 streams, as long as the plaintexts of ags1/cases.json."""
    for base in STREAMS:
        if base.name in ("mib-empty", "one-byte", "no-prefix", "key-256", "mib", "mib-plus-one"):
            yield {
                "id": f"ags1-{base.name}", "comment": base.comment, "spec": "AGS1 File structure",
                "format": "ags1", "features": [], "severity": "feature", "outcome": "written",
                "plaintext": {
                    "shake_128": f"modcrypt spec-vectors: ags1 plaintext {base.name}",
                    "length": len(plaintext(base.name)),
                },
                "key": base.key,
                "aad_prefix": None if base.aad_prefix is None else base.aad_prefix.hex(),
            }  # fmt: skip

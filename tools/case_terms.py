"""Terms of a case: features that a reader needs, severity, and the outcomes that are allowed."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

FEATURES = {
    "ctr": "AES_GCM_CTR_V1: page bodies under AES-CTR",
    "encrypted-footer": "files with an encrypted footer",
    "plaintext-footer": "files with a signed plaintext footer",
    "column-keys": "columns with keys of their own",
    "aad-prefix": "an AAD prefix that the reader expects or supplies",
    "aes-192": "keys of 192 bits",
    "aes-256": "keys of 256 bits",
    "v2": "data pages V2, encrypted whole",
    "v2-levels-clear": "data pages V2 with levels in clear, as parquet-java writes them",
    "page-checksums": "verification of page CRCs",
    "page-indexes": "a read opens the column and offset indexes of encrypted columns",
    "bloom-filters": "a read opens the Bloom filters of encrypted columns",
    "algorithm-choice": "the caller states which algorithms are accepted",
    "drop-columns": "columns without a key are left out on request",
    "unchecked-footer": "the signature of a plaintext footer is ignored on request",
    "metadata": "the operation `metadata`: the columns whose metadata can be read",
    "external-keys": "key material in a file beside the Parquet file",
    "mldsa65": "signatures by ML-DSA-65; those by Ed25519 need no feature",
    "table-seals": "seals of Iceberg tables; those of folders need no feature",
    "seal-ledgers": "seals of version 2, also with witnesses; those of version 1 need no feature",
    "unverified-length": "AGS1: reading without a trusted length",
    "block-length": "AGS1: block lengths other than 1 MiB",
}
"""Features of readers, by the names that clients declare."""

WRITE_FEATURES = {
    **{name: FEATURES[name] for name in (
        "ctr", "encrypted-footer", "plaintext-footer", "column-keys", "aad-prefix", "aes-192",
        "aes-256", "external-keys",
    )},
    "v2": "data pages V2",
    "page-indexes": "column and offset indexes",
    "bloom-filters": "Bloom filters for columns that are named",
    "plaintext-columns": "columns that are not encrypted, in an encrypted file",
    "footer-key-columns": "columns under the footer key beside columns with keys of their own",
    "nested-column-keys": "keys for leaves of nested columns",
    "key-metadata": "key metadata that the caller gives",
    "rows-per-page": "a limit of rows per data page",
}  # fmt: skip
"""The features of writers."""

SEVERITIES = ("security", "feature")
_OF_TAGS = ("ctr", "encrypted-footer", "plaintext-footer", "v2", "v2-levels-clear")
_OF_MODULES = {
    "COLUMN_INDEX": "page-indexes",
    "OFFSET_INDEX": "page-indexes",
    "BLOOM_FILTER_HEADER": "bloom-filters",
    "BLOOM_FILTER_BITSET": "bloom-filters",
}
_OF_OPTIONS = {
    "aad_prefix": "aad-prefix",
    "check_footer_integrity": "unchecked-footer",
    "on_missing_key": "drop-columns",
}
_FREE_TAGS = {"ctr-malleable", "unauthenticated"}
"""Tags of modified files that the format lets a reader accept."""


def parquet_terms(case: Json, opens: str | None = None) -> Json:
    """Return the terms of a Parquet case; `opens` is a feature that its fault needs to be seen."""
    found = {tag for tag in case["tags"] if tag in _OF_TAGS}
    found |= {f"aes-{bits}" for bits in _key_sizes(case) if bits != "128"}
    found |= {feature for option, feature in _OF_OPTIONS.items() if option in case["properties"]}
    if case["keys"]["columns"]:
        found.add("column-keys")
    found |= {"algorithm-choice", "metadata"} & set(case["tags"])
    if case["expect"] == "checksum":
        found.add("page-checksums")
    module = (case["error"] or {}).get("module") or {}
    found |= {feature for feature in (opens, _OF_MODULES.get(module.get("type", ""))) if feature}
    modified = case["expect"] != "ok" or bool(_FREE_TAGS & set(case["tags"]))
    return _terms(found, case["expect"] != "ok", modified, free=bool(_FREE_TAGS & {*case["tags"]}))


def ags1_terms(case: Json) -> Json:
    """Return the terms of an AGS1 case."""
    found = set()
    if case["length"] is None:
        found.add("unverified-length")
    if case["block_length"] != 1 << 20:
        found.add("block-length")
    designed = "ByDesign" in case["flags"]
    return _terms(found, case["expect"] != "ok", case["expect"] != "ok" or designed, free=designed)


def key_metadata_terms(case: Json) -> Json:
    """Return the terms of a case of Iceberg's key metadata."""
    return _terms(set(), case["expect"] != "ok", modified=False, free=False)


def pkmt1_terms(case: Json) -> Json:
    """Return the terms of a case of key material."""
    terms = parquet_terms(case)
    if case["external"] is not None:
        terms["features"] = sorted({*terms["features"], "external-keys"})
    if "security" in case["tags"]:
        terms["severity"] = "security"
    return terms


def signature_terms(case: Json, *, plaintext_footer: bool) -> Json:
    """Return the terms of a signed file."""
    found = {"column-keys", "plaintext-footer" if plaintext_footer else "encrypted-footer"}
    needed = {
        "ctr": case["algorithm"] == "AES_GCM_CTR_V1",
        "aad-prefix": case["aad_prefix"] is not None,
        "mldsa65": case["verifier"] == "mldsa65.pub",
    }
    found |= {feature for feature, needs in needed.items() if needs}
    refused = case["expect"] != "ok"
    return _terms(found, refused, refused, free=False)


def seal_terms(case: Json) -> Json:
    """Return the terms of a seal, whose findings do not refuse it, but have to be found."""
    found = {"mldsa65"} if any(":mldsa65:" in line for line in case["signed_by"]) else set()
    if "metadata" in case:
        found.add("table-seals")
    if case["id"].startswith("ledger"):
        found.add("seal-ledgers")
    refused = case["expect"] != "ok"
    return _terms(found, refused, refused or bool(case.get("findings")), free=False)


def _key_sizes(case: Json) -> set[str]:
    names = [case["keys"]["footer"], *case["keys"]["columns"].values()]
    return {name.rpartition("-")[2] for name in names if name}


def _terms(features: set[str], refused: bool, modified: bool, *, free: bool) -> Json:
    assert features <= FEATURES.keys(), features
    outcome = "either" if free else "refuse" if refused else "accept"
    return {
        "features": sorted(features),
        "severity": "security" if modified else "feature",
        "outcome": outcome,
    }

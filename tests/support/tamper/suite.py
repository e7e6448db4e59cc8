"""Attacks that are cases of the conformance suite, too: two measurements that must agree.

The matrix tries more readers (decryption, verification, key tools), more files (of datasets) and
more ways of reading (filters) than the suite has, so each cell is still run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.support.paths import ROOT

RESULTS = ROOT / "tools/conformance/results"

CLIENTS = {
    "`read_table`": ("modcrypt", "parquet"),
    "PyArrow, keys": ("pyarrow", "parquet"),
    "PyArrow, KMS": ("pyarrow", "pkmt1"),
    "parquet-java, keys": ("parquet-java", "parquet"),
    "parquet-java, KMS": ("parquet-java", "pkmt1"),
    "Polars": ("polars", "parquet"),
    "DuckDB": ("duckdb", "parquet"),
}
"""Client and format of the suite, by the matrix's readers."""

CASES = {
    "Bits flipped: sealed footer": "uniform-footer-ciphertext-flipped",
    "Bits flipped: file-unique in the file's crypto metadata": "file-unique-flipped",
    "Bits flipped: plaintext footer": "simple-signed-footer-created-by-flipped",
    "Bits flipped: nonce of its signature": "simple-signed-footer-nonce-flipped",
    "Bits flipped: tag of its signature": "simple-signed-footer-tag-flipped",
    "Bits flipped: magic at the start": "head-magic-par1",
    "Bits flipped: magic at the end (`PARE` to `PAR1`)": "tail-magic-par1",
    "Bits flipped: column metadata (footer signed anew)": "column-metadata-ciphertext-flipped",
    "Bits flipped: data page header": "uniform-data-page-header-ciphertext-flipped",
    "Bits flipped: data page": "uniform-data-page-ciphertext-flipped",
    "Bits flipped: data page: nonce": "uniform-data-page-nonce-flipped",
    "Bits flipped: data page: tag": "uniform-data-page-tag-flipped",
    "Bits flipped: data page: length field": "uniform-data-page-length-flipped",
    "Bits flipped: data page: length field, 1 GiB more": "data-page-length-1-gib",
    "Bits flipped: data page header: length field, 1 GiB more": "data-page-header-length-1-gib",
    "Bits flipped: dictionary page header": "uniform-dictionary-page-header-ciphertext-flipped",
    "Bits flipped: dictionary page": "uniform-dictionary-page-ciphertext-flipped",
    "Bits flipped: column index; read by a filter": "uniform-column-index-ciphertext-flipped",
    "Bits flipped: offset index; read by a filter": "uniform-offset-index-ciphertext-flipped",
    "Bits flipped: Bloom filter header; read by a filter":
        "uniform-bloom-filter-header-ciphertext-flipped",
    "Bits flipped: Bloom filter bitset; read by a filter":
        "uniform-bloom-filter-bitset-ciphertext-flipped",
    "Parts moved: two pages of a chunk exchanged": "uniform-data-page-swapped-across-pages",
    "Parts moved: pages of two row groups exchanged": "uniform-data-page-swapped-across-row-groups",
    "Parts moved: pages of two columns under one key exchanged":
        "uniform-data-page-swapped-across-columns",
    "Parts moved: page of another file (same key, schema and place)":
        "uniform-data-page-of-another-file",
    "Parts moved: headers of two pages exchanged, without their pages":
        "uniform-data-page-header-swapped-across-pages",
    "Parts moved: dictionaries of two row groups exchanged":
        "uniform-dictionary-page-swapped-across-row-groups",
    "Parts moved: column indexes of two row groups exchanged; read by a filter":
        "uniform-column-index-swapped-across-row-groups",
    "Parts moved: column metadata of two row groups exchanged":
        "column-metadata-swapped-across-row-groups",
    "Old files and footers: footer of an earlier version under today's pages":
        "uniform-footer-of-another-file",
    "Old files and footers: the same, and a stored AAD prefix is demanded":
        "prefix-stored-another-given",
    "Old files and footers: the same, and an AAD prefix is demanded that isn't stored":
        "prefix-not-stored-another-given",
    "Cut and lengthened: bytes appended": "bytes-appended",
    "Cut and lengthened: emptied": "empty-file",
    "Signatures and labels: plaintext file in the place of one with a sealed footer":
        "simple-plaintext-file-ef",
    "Signatures and labels: plaintext file in the place of one with a signed footer":
        "simple-plaintext-file",
    "Signatures and labels: GCM label switched to CTR; CTR is accepted":
        "gcm-relabelled-ctr-accepted",
    "Signatures and labels: GCM label of a signed footer switched; CTR is accepted":
        "gcm-relabelled-ctr-signed",
    "AAD prefix: stored prefix altered": "prefix-stored-flipped",
    "AAD prefix: border moved: `part.10` passes for `part.1`, which is demanded":
        "prefix-border-moved",
    "AAD prefix: the same with a prefix that isn't stored": "border-moved-out-of-file-unique",
    "Parts without a tag: page under CTR with a CRC, which is verified: bits flipped":
        "ctr-data-page-with-crc-flipped",
    "By holders of a key: row groups reordered": "uniform-row-groups-reordered",
    "By holders of a key: the same, and renumbered": "uniform-row-groups-renumbered",
    "By holders of a key: plaintext column in the place of one with its own key":
        "column-key-for-plaintext-column-ef",
    "Key material: removed": "external-file-missing",
    "Key material: a master key named that isn't there": "master-unknown",
    "Key material: address of the key service beside the file: the attacker's":
        "url-of-attacker-external",
    "Key material: address of the key service in the file: the attacker's": "url-of-attacker",
}  # fmt: skip
"""Names of cases, by the titles of attacks that do the same to another file."""

_BLOOM = "a filter goes on without a Bloom filter that does not open; the client opens it itself"
DIFFERENCES = {
    ("parquet-java, keys", "uniform-bloom-filter-header-ciphertext-flipped"): _BLOOM,
    ("parquet-java, keys", "uniform-bloom-filter-bitset-ciphertext-flipped"): _BLOOM,
    ("parquet-java, keys", "gcm-relabelled-ctr-accepted"):
        "noise decodes as the numbers of the matrix's file, and not as the strings of the case's",
}  # fmt: skip
"""Why the two differ, by reader and case."""


def case_of(title: str) -> str:
    """Return the suite's name for an attack, or an empty string."""
    return CASES.get(title, "")


@cache
def _results(client: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{client}.json").read_text())
    return found


def suite_outcomes(reader: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield attack, case and the outcomes of the matrix that fit the suite's verdict."""
    client, form = CLIENTS[reader]
    verdicts = _results(client)["cases"]
    for title, case in CASES.items():
        verdict = verdicts.get(f"read/{form}/{case}")
        if verdict is not None and (reader, case) not in DIFFERENCES:
            yield title, case, fitting_outcomes(case, verdict)


def fitting_outcomes(case: str, verdict: dict[str, Any]) -> set[str]:
    """Return the outcomes of the matrix that fit a verdict of the suite.

    A reader passes a case of a hostile address, too, if it reads the rows without going there.
    """
    kind = verdict.get("failure", verdict["verdict"])
    if kind == "pass":
        return {"detected", "accepted"} if case.startswith("url-") else {"detected"}
    if kind == "fail-open":
        return {"accepted"} if verdict.get("intact") else {"wrong data", "token sent"}
    return {"crash"}

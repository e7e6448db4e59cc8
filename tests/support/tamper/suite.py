"""Attacks that are cases of the conformance suite, too, which then has their outcomes."""

from __future__ import annotations

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
        "numbers-gcm-relabelled-ctr",
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
"""Names of cases, by the titles of attacks that do the same to another file without a filter."""


def case_of(title: str) -> str:
    """Return format and name of the case for an attack, or an empty string."""
    if title not in CASES:
        return ""
    form = "pkmt1" if title.startswith("Key material") else "parquet"
    return f"{form}/{CASES[title]}"

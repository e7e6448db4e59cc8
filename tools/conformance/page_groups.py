"""The rows of the results page: areas of features, and the patterns of the cases in each."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tools.conformance.corpus import Case
from tools.conformance.disclosure import is_hostile

AREAS: dict[str, dict[str, tuple[str, ...]]] = {
    "Reading valid Parquet files": {
        "Encrypted footer, uniform": (
            "read/parquet/gcm-ef-uniform*", "read/parquet/gcm-ef-simple",
            "read/parquet/gcm-ef-numbers",
        ),
        "Signed plaintext footer": ("read/parquet/gcm-pf-*",),
        "Column keys": ("read/parquet/gcm-ef-mixed", "read/parquet/gcm-ef-columns"),
        "AES_GCM_CTR_V1": (
            "read/parquet/ctr-?f-*", "read/parquet/crc-ctr", "read/parquet/v2-*-ctr",
        ),
        "AAD prefix": ("read/parquet/prefix-*stored*",),
        "Data pages V2": ("read/parquet/v2-*",),
        "Padding and foreign extensions": (
            "read/parquet/java-padding", "read/parquet/*extension*", "read/parquet/footer-padded",
        ),
        "Types, no rows, other options": ("read/parquet/*",),
    },
    "Reading hostile Parquet files": {
        "A bit flipped in a module": (
            "read/parquet/*-nonce-flipped", "read/parquet/*-ciphertext-flipped",
            "read/parquet/*-tag-flipped", "read/parquet/*value-flipped",
            "read/parquet/*-level-flipped", "read/parquet/*crc-flipped",
        ),
        "Lengths that lie": (
            "read/parquet/*-length-*", "read/parquet/*lies", "read/parquet/empty-file",
            "read/parquet/last-byte-missing", "read/parquet/bytes-appended",
        ),
        "Modules swapped": ("read/parquet/*swapped*", "read/parquet/*-of-another-file"),
        "Row groups renumbered": ("read/parquet/*row-group*",),
        "Footer and signature": (
            "read/parquet/*sign*", "read/parquet/*footer-e*", "read/parquet/*footer-c*",
            "read/parquet/*magic*", "read/parquet/column-metadata-removed",
            "read/parquet/column-declared-plaintext",
        ),
        "Keys absent or wrong": ("read/parquet/*key-*",),
        "AAD prefix": ("read/parquet/*prefix*", "read/parquet/file-unique-*"),
        "Algorithm relabelled": ("read/parquet/*relabelled*", "read/parquet/*algorithm*",
                                 "read/parquet/*ctr*"),
        "Unknown page kinds and others": ("read/parquet/*",),
    },
    "Key material (PKMT1)": {
        "Valid material": ("read/pkmt1/*",),
        "Hostile material": ("read/pkmt1/*",),
    },
    "Signatures of writers": {
        "Valid signatures": ("read/signatures/*",),
        "Removed, altered or of another": ("read/signatures/*",),
    },
    "Seals of datasets and tables": {
        "Valid seals": ("read/seals/*",),
        "Seals of tables": ("read/seals/*table*",),
        "Files missing, foreign or changed": (
            "read/seals/*file*-missing", "read/seals/file-*", "read/seals/files-swapped",
            "read/seals/partition-*",
        ),
        "Seals that follow each other": ("read/seals/ledger*",),
        "Forged, older or malformed seals": ("read/seals/*",),
    },
    "AGS1 and Iceberg's key metadata": {
        "Valid streams": ("read/ags1/*",),
        "Wrong lengths": ("read/ags1/*trusted*", "read/ags1/*cut-to*", "read/ags1/*-bytes*",
                          "read/ags1/*missing*", "read/ags1/*empty-block*"),
        "Modified blocks and headers": ("read/ags1/*",),
        "Valid key metadata": ("*/key-metadata/*",),
        "Malformed key metadata": ("*/key-metadata/*",),
    },
    "Writing": {
        "Parquet, keys given": ("write/parquet/*",),
        "Parquet, key service": ("write/pkmt1/*",),
        "AGS1": ("write/ags1/*",),
    },
}  # fmt: skip
VALID = {"Reading valid Parquet files", "Valid material", "Valid signatures", "Valid seals",
         "Valid streams", "Valid key metadata", "Writing"}  # fmt: skip
"""Areas and rows of valid files; those of hostile ones are shown for modcrypt only."""


def is_valid(area: str, row: str) -> bool:
    """Return whether a row is one of valid files."""
    return area in VALID or row in VALID


def group_cases(cases: Iterable[Case]) -> dict[tuple[str, str], list[str]]:
    """Return case ids by area and row; each case is in the first row that fits."""
    found: dict[tuple[str, str], list[str]] = {
        (area, row): [] for area, rows in AREAS.items() for row in rows
    }
    for case in cases:
        found[_row_of(case)].append(case.id)
    return found


def _row_of(case: Case) -> tuple[str, str]:
    for area, rows in AREAS.items():
        for row, patterns in rows.items():
            fits = any(fnmatchcase(case.id, pattern) for pattern in patterns)
            if fits and is_valid(area, row) != is_hostile(case):
                return area, row
    raise LookupError(f"no row for {case.id}")

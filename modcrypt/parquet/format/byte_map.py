"""A map of a file's bytes: one `Region` after another, from the first byte to the last.

Inspection and verification produce the same map; drawings and tables are built from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from modcrypt.report.json_fields import JsonFields

Severity: TypeAlias = Literal["fault", "warning"]

State: TypeAlias = Literal[
    "authentic", "fault", "locked", "plaintext", "unauthenticated", "unchecked"
]
"""The state of a region's bytes.

- authentic: The tag was verified.
- fault: The region was checked, and something is wrong with it.
- locked: The region is encrypted, and its key is missing.
- plaintext: The region is not encrypted, and therefore not authenticated.
- unauthenticated: The region is encrypted without a tag, like page bodies under AES_GCM_CTR_V1.
- unchecked: The region is encrypted and was not decrypted although its key is available, or it
  could not be reached.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(JsonFields):
    """The bytes [start, end) of a file.

    Attributes:
        start, end: Offsets in the file.
        kind: Name of a module type as in `ModuleId` ("data page header", "column index", ...);
            "pages" for a chunk whose pages were not walked; "bloom filter" for one that was not
            decrypted; "magic", "file crypto metadata", "footer", "footer signature" or "footer
            length"; "restoration" for the module by which decryption restores every byte; "gap"
            for bytes that nothing refers to; "modules" for a run of encrypted modules that an
            encrypted footer hides.
        state: What is known about the bytes.
        row_group, column, page: Ordinals; None where they do not apply.
        path: Dotted name of the column.
        key: Name of the key: "footer key", "column key of" the first column that uses it, or with
            PKMT1 the master key's id; None for plaintext.
    """

    start: int
    end: int
    kind: str
    state: State
    row_group: int | None = None
    column: int | None = None
    page: int | None = None
    path: str | None = None
    key: str | None = None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start


def fill_gaps(regions: Iterable[Region], size: int) -> Iterator[Region]:
    """Yield regions in file order, with a "gap" region for each range that none of them covers.

    The sizes add up to the file's unless regions overlap. Overlapping regions are yielded
    unchanged: verification reports them as a finding.
    """
    reached = 0
    for region in sorted(regions, key=lambda region: (region.start, region.end)):
        if region.start > reached:
            yield Region(start=reached, end=region.start, kind="gap", state="plaintext")
        yield region
        reached = max(reached, region.end)
    if reached < size:
        yield Region(start=reached, end=size, kind="gap", state="plaintext")

"""What the bytes of a file are: one `Region` after another, from the first byte to the last.

Inspecting and verifying a file give the same map; drawings and tables are made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Region", "Severity", "State", "complete"]

Severity: TypeAlias = Literal["fault", "warning"]

State: TypeAlias = Literal[
    "authentic", "fault", "locked", "plaintext", "unauthenticated", "unchecked"
]
"""What is known of a region's bytes.

- authentic: its tag was verified.
- fault: it was looked at, and something is wrong.
- locked: encrypted, and there is no key.
- plaintext: not encrypted, so not authenticated either.
- unauthenticated: encrypted without a tag, as page bodies are under AES_GCM_CTR_V1.
- unchecked: encrypted, and not opened although the key is there; or it could not be reached.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The bytes [start, end) of a file.

    Attributes:
        start, end: offsets in the file.
        kind: a module type in words as in `ModuleId` ("data page header", "column index", ...);
            "pages" for a chunk whose pages were not walked, "bloom filter" for one that was not
            opened; "magic", "file crypto metadata", "footer", "footer signature", "footer length";
            "gap" for what nothing refers to; "modules" for a run of encrypted modules that a
            sealed footer hides.
        state: what is known of the bytes.
        row_group, column, page: ordinals, where it has them.
        path: dotted name of the column.
        key: what its key is called: "footer key", "column key", or with PKMT1 the master key's id;
            None for plaintext.
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
        """Bytes of it."""
        return self.end - self.start

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


def complete(regions: Iterable[Region], size: int) -> Iterator[Region]:
    """Sort regions, and name the gaps between them, so that their sizes add up to the file's.

    Regions that overlap stay as they are: a fault of the file, which its finding tells.
    """
    reached = 0
    for region in sorted(regions, key=lambda one: (one.start, one.end)):
        if region.start > reached:
            yield Region(start=reached, end=region.start, kind="gap", state="plaintext")
        yield region
        reached = max(reached, region.end)
    if reached < size:
        yield Region(start=reached, end=size, kind="gap", state="plaintext")

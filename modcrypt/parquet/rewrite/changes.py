"""The changes that a rewrite makes to a file besides its keys: `Change`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.keys import Key


@dataclass(frozen=True, kw_only=True)
class Change:
    """Changes to a file other than new keys; raise ValueError for an empty `only`."""

    only: Sequence[str] | None = None
    null: Sequence[str] = ()
    hashed: Sequence[str] = ()
    drop: Sequence[str] = ()
    hash_key: Key | None = None
    keep_unchanged: bool = False
    keep_levels: bool = False
    keep_unknown_fields: bool = False
    read_restrictions: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.only is not None and not self.only:
            raise ValueError("no columns to share; name them in columns")
        _ = self.actions

    @property
    def actions(self) -> Mapping[int, str]:
        """The actions of the read restrictions, by the ids of fields.

        Raise UnsupportedFormatError if they cannot be applied to a whole file.
        """
        if self.read_restrictions is None:
            return {}
        from modcrypt.parquet.arrow.column_masks import find_actions  # loads PyArrow

        return find_actions(self.read_restrictions)

    def check_path(self, path: str) -> None:
        """Raise UnsupportedFormatError if folders in a path may state values that are masked."""
        if self.actions and "=" in posixpath.dirname(path):
            from modcrypt.parquet.arrow.column_masks import restriction_error

            raise restriction_error(
                "names of folders may state masked values, and copies keep them; mask the files "
                "of each such folder by themselves"
            )

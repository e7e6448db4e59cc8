"""The changes that a rewrite makes to a file besides its keys: `Change`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.keys import Key
from modcrypt.parquet.crypto.properties import check_name_list


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
    exact: bool = True
    repair: bool = False
    read_restrictions: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for field in ("only", "null", "hashed", "drop"):
            if (names := getattr(self, field)) is not None:
                object.__setattr__(
                    self, field, check_name_list(names, field.replace("only", "columns"))
                )
        if self.only is not None and not self.only:
            raise ValueError("no columns to share; name them in columns")
        _ = self.actions

    @property
    def is_visible(self) -> bool:
        """True if a look at the new file tells whether the change was made as these options say."""
        return self.exact and not (self.keep_unknown_fields or self.keep_unchanged or self.repair)

    @property
    def actions(self) -> Mapping[int, str]:
        """The actions of the read restrictions, by the ids of fields.

        Raise UnsupportedFormatError if they cannot be applied to a whole file.
        """
        if self.read_restrictions is None:
            return {}
        from modcrypt.parquet.arrow.column_masks import find_actions  # loads PyArrow

        return find_actions(self.read_restrictions)

    def keeps(self, leaf: tuple[str, ...]) -> bool:
        """Return whether a leaf stays in the file, by the names of columns and groups."""
        only = self.only is None or _is_named(leaf, self.only)
        return only and not _is_named(leaf, self.drop)

    def bare_fields(self, leaves: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        """Return the paths of the fields that lose their metadata in the Arrow schema.

        They are hashed leaves, and groups without some of their leaves.
        """
        groups = (leaf[:n] for leaf in leaves if not self.keeps(leaf) for n in range(1, len(leaf)))
        return (*(leaf for leaf in leaves if _is_named(leaf, self.hashed)), *groups)

    def check_path(self, path: str) -> None:
        """Raise UnsupportedFormatError if folders in a path may state values that are masked."""
        if self.actions and "=" in posixpath.dirname(path):
            from modcrypt.parquet.arrow.column_masks import restriction_error

            raise restriction_error(
                "names of folders may state masked values, and copies keep them; mask the files "
                "of each such folder by themselves"
            )


def _is_named(leaf: tuple[str, ...], names: Sequence[str]) -> bool:
    """Return whether one of the names is that of a leaf, or of a group around it."""
    return any(".".join(leaf[:length]) in names for length in range(1, len(leaf) + 1))

"""Which master keys may protect what a reader opens.

Keys are symmetric: with any master key that a reader may unwrap by, an attacker who may wrap by it,
or who has read one file under it, can forge whole files. So the reader's policy decides which
master keys count, never the file, and it decides before the key service is asked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyMaterialError, PlaintextError
from modcrypt.fork_safety import cached_property
from modcrypt.kms.policy import Policy
from modcrypt.parquet.format.schema import covering_name
from modcrypt.pkmt1.material import KeyMaterial

__all__ = ["ExpectedKeys", "id_set"]

MAX_SHOWN = 5
"""Expected ids that an error lists: a policy may have hundreds."""


def id_set(master_key_ids: Collection[str] | None) -> frozenset[str]:
    """Return ids of master keys as a set, which is empty for None.

    Raises:
        ValueError: a single string, of which every letter would be expected.
    """
    if isinstance(master_key_ids, str):
        raise ValueError("master_key_ids takes several ids, not one string")
    return frozenset(master_key_ids or ())


@dataclass(frozen=True)
class ExpectedKeys:
    """The master keys that a reader accepts. Ids match literally.

    Args:
        policy: Policy that names a master key for the footer and for each column; None where any of
            `declared` may protect anything.
        declared: Further ids, as during a rotation. With a policy, an id that the policy names
            itself counts only for the columns that the policy gives it.
        anything: Accept every master key: no policy, and no ids.
    """

    policy: Policy | None = None
    declared: frozenset[str] = frozenset()
    anything: bool = field(default=False, kw_only=True)

    def also(self, master_key_ids: Collection[str]) -> ExpectedKeys:
        """Return the same expectation with further ids."""
        return replace(self, declared=self.declared | id_set(master_key_ids))

    def check(self, material: KeyMaterial, column: str | None, where: str) -> None:
        """Check the master key of key material before the key service is asked.

        Args:
            material: Key material of a file, or of an AGS1 stream.
            column: Dotted name of the column, None for the footer key.
            where: Name of the file.

        Raises:
            KeyMaterialError: The key is wrapped under another master key than expected.
        """
        self._check(material, where, self._of(column))

    def check_any(self, material: KeyMaterial, where: str) -> None:
        """Check key material of which it is unknown whether the footer or a column needs it."""
        self._check(material, where, self._ids)

    def check_kind(self, leaf: tuple[str, ...], kind: str) -> None:
        """Check how a column is encrypted.

        Args:
            leaf: Path of the column.
            kind: `"plaintext"`, `"footer key"` or `"column key"`.

        Raises:
            PlaintextError: The policy encrypts the column and the file does not, or the policy
                gives it a key of its own and the file does not.
        """
        if self.policy is None:
            return
        path = ".".join(leaf)
        if kind == "plaintext" and not self.declares_plaintext(leaf):
            raise PlaintextError(f"column {path} is in plaintext, and the policy encrypts it")
        # Anyone with the footer key alone could put a column of their own in its place.
        if kind == "footer key" and self._own(leaf) is not None:
            raise PlaintextError(
                f"column {path} is encrypted with the footer key, and the policy gives it a key of "
                "its own"
            )

    def declares_plaintext(self, leaf: tuple[str, ...]) -> bool:
        """Return whether the policy leaves a column in plaintext."""
        name = covering_name(leaf, self._masters)
        return name is not None and self._masters[name] is None

    def has_own_key(self, column: str) -> bool:
        """Return whether the policy gives a column a key of its own."""
        return self._own(tuple(column.split("."))) is not None

    def _own(self, leaf: tuple[str, ...]) -> str | None:
        """Return the master key of a column's own key in the policy."""
        name = covering_name(leaf, self._masters)
        return None if name is None else self._masters[name]

    @cached_property
    def _masters(self) -> dict[str, str | None]:
        """Column or group to its master key, None for those that the policy leaves in plaintext."""
        if self.policy is None:
            return {}
        return {**dict.fromkeys(self.policy.plaintext_columns), **self.policy.key_of_column}

    @cached_property
    def _ids(self) -> frozenset[str]:
        return self.declared if self.policy is None else self.declared | self.policy.master_key_ids

    @cached_property
    def _further(self) -> frozenset[str]:
        named = frozenset() if self.policy is None else self.policy.master_key_ids
        return self.declared - named

    def _of(self, column: str | None) -> frozenset[str]:
        """Return the ids that may protect a column, or the footer.

        A column without a master key in the policy belongs under the footer key. A writer that gave
        it a key of its own must have wrapped that under the footer's master key.
        """
        if self.policy is None:
            return self.declared
        own = None if column is None else self._own(tuple(column.split(".")))
        return self._further | {own or self.policy.footer_key}

    def _check(self, material: KeyMaterial, where: str, ids: frozenset[str]) -> None:
        if self.anything or material.master_key_id in ids:
            return
        more = f" or {len(ids) - MAX_SHOWN} more" if len(ids) > MAX_SHOWN else ""
        names = ", ".join(repr(one) for one in sorted(ids)[:MAX_SHOWN]) or "any that is expected"
        advice = (
            "the policy names that master key for another part of files"
            if material.master_key_id in self._ids
            else "pass master_key_ids to accept that master key too, as during a rotation"
        )
        raise KeyMaterialError(
            f"the key in {where} is wrapped under master key {material.master_key_id[:200]!r}, not "
            f"under {names}{more}; {advice}"
        )

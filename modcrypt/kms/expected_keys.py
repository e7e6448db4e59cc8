"""The master keys that a reader accepts for the files it opens.

Keys are symmetric. An attacker who may wrap under a master key under which the reader may unwrap,
or who has read one file under it, can forge whole files. Therefore the reader's policy, never the
file, decides which master keys modcrypt accepts, before it calls the key service.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from modcrypt.errors import KeyMaterialError, PlaintextError
from modcrypt.kms.client import KmsClient
from modcrypt.kms.policy import Policy
from modcrypt.parquet.format.schema import covering_name
from modcrypt.pkmt1.material import KeyMaterial
from modcrypt.runtime.fork_safety import cached_property

MAX_SHOWN = 5
"""Number of expected ids that an error lists: a policy may contain hundreds."""


def id_set(master_key_ids: Collection[str] | None) -> frozenset[str]:
    """Return ids of master keys as a set; raise ValueError for one string, a set of letters."""
    if isinstance(master_key_ids, str):
        raise ValueError("master_key_ids takes a collection of ids, not one string")
    ids = frozenset(() if master_key_ids is None else master_key_ids)
    if not all(isinstance(master_key_id, str) for master_key_id in ids):
        raise TypeError("master_key_ids takes the ids of master keys as strings")
    return ids


def expect_keys(
    client: KmsClient, *, policy: Policy | None = None, declared: Collection[str] | None = None
) -> ExpectedKeys:
    """Return which master keys may protect what a reader opens.

    The policy decides. Without a policy, only the master key in the URI of the key service may;
    with neither, and no ids declared, any master key may. `declared` adds ids; an empty collection
    is a declaration, too.
    """
    ids = id_set(declared)
    if policy is not None:
        return ExpectedKeys(policy, ids)
    named = getattr(client, "default_key", None)
    if isinstance(named, str) and named:
        return ExpectedKeys(None, ids | {named})
    return ExpectedKeys(None, ids, anything=declared is None)


@dataclass(frozen=True)
class ExpectedKeys:
    """The master keys that a reader accepts; ids match literally."""

    # Policy that names a master key for the footer and for each column; None if any of `declared`
    # may protect anything.
    policy: Policy | None = None
    # Further ids, as during a rotation. With a policy, an id that the policy itself names counts
    # only for the columns to which the policy assigns it.
    declared: frozenset[str] = frozenset()
    # Whether to accept every master key, because there is no policy and no id.
    anything: bool = field(default=False, kw_only=True)

    @property
    def of_whole_files(self) -> frozenset[str] | None:
        """Ids that may protect a file or table with a single key; None for any."""
        return None if self.anything else self._select_ids(None)

    def also(self, master_key_ids: Collection[str]) -> ExpectedKeys:
        """Return the same expectation with further ids."""
        return replace(self, declared=self.declared | id_set(master_key_ids))

    def check(self, material: KeyMaterial, column: str | None, where: str) -> None:
        """Check the master key of the footer key, or of a column's, before calling the key service.

        `where` is the name of the file. Raise KeyMaterialError for another master key than
        expected.
        """
        self._check(material, where, self._select_ids(column))

    def check_any(self, material: KeyMaterial, where: str) -> None:
        """Check key material whose use, by the footer or by a column, is unknown."""
        self._check(material, where, self._ids)

    def check_kind(self, leaf: tuple[str, ...], kind: str) -> None:
        """Check how a column is encrypted: `"plaintext"`, `"footer key"` or `"column key"`."""
        if self.policy is None:
            return
        path = ".".join(leaf)
        if kind == "plaintext" and not self.declares_plaintext(leaf):
            raise PlaintextError(
                f"column {path} is in plaintext, but the policy requires encryption"
            )
        # Otherwise, anyone with only the footer key could replace the column.
        if kind == "footer key" and self._find_own_key(leaf) is not None:
            raise PlaintextError(
                f"column {path} is encrypted with the footer key, but the policy requires a key of "
                "its own"
            )

    def declares_plaintext(self, leaf: tuple[str, ...]) -> bool:
        """Return whether the policy leaves a column in plaintext."""
        name = covering_name(leaf, self._masters)
        return name is not None and self._masters[name] is None

    def has_own_key(self, column: str) -> bool:
        """Return whether the policy gives a column a key of its own."""
        return self._find_own_key(tuple(column.split("."))) is not None

    def _find_own_key(self, leaf: tuple[str, ...]) -> str | None:
        """Return the master key of a column's own key in the policy."""
        name = covering_name(leaf, self._masters)
        return None if name is None else self._masters[name]

    @cached_property
    def _masters(self) -> dict[str, str | None]:
        """Map of column or group to master key; None for those that stay in plaintext."""
        if self.policy is None:
            return {}
        return {**dict.fromkeys(self.policy.plaintext_columns), **self.policy.key_of_column}

    @cached_property
    def _ids(self) -> frozenset[str]:
        return self.declared if self.policy is None else self.declared | self.policy.master_key_ids

    def _select_ids(self, column: str | None) -> frozenset[str]:
        """Return the ids that may protect a column, or the footer."""
        # A column without a master key in the policy belongs under the footer key. If the writer
        # gave it a separate key, that key must be wrapped under the footer's master key.
        if self.policy is None:
            return self.declared
        own = None if column is None else self._find_own_key(tuple(column.split(".")))
        return (self.declared - self.policy.master_key_ids) | {own or self.policy.footer_key}

    def _check(self, material: KeyMaterial, where: str, ids: frozenset[str]) -> None:
        if self.anything or material.master_key_id in ids:
            return
        more = f" or {len(ids) - MAX_SHOWN} more" if len(ids) > MAX_SHOWN else ""
        names = ", ".join(repr(key) for key in sorted(ids)[:MAX_SHOWN]) or "any that is expected"
        advice = (
            "the policy assigns that master key to another part of the file"
            if material.master_key_id in self._ids
            else "pass master_key_ids to accept that master key too, as during a rotation"
        )
        raise KeyMaterialError(
            f"the key in {where} is wrapped under master key {material.master_key_id[:200]!r}, not "
            f"under {names}{more}; {advice}"
        )

"""Keys that have wrapped so many others that a random nonce may soon repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from modcrypt.keys import invocations
from modcrypt.kms.client import KmsClient, MasterKey, capabilities_of


@dataclass(frozen=True, slots=True)
class KnownWraps:
    """The known number of keys that a key has wrapped.

    Attributes:
        master_key_id: Id of the master key.
        version: Version of the master key; None if it is unknown.
        kek_id: Id of the KEK in hex that wraps, under the master key; None for the master key.
        count: Number of keys that are seen to have been wrapped.
    """

    master_key_id: str
    version: str | None
    kek_id: str | None
    count: int

    @property
    def name(self) -> str:
        """The key that wraps, for messages."""
        if self.kek_id is not None:
            return f"KEK {self.kek_id}"
        version = "" if self.version is None else f"@{self.version}"
        return f"{self.master_key_id}{version}"

    def describe(self) -> str:
        """Return a sentence with what to do."""
        how = f"add a version: modcrypt keys rotate --kms URI --key {self.master_key_id}"
        if self.kek_id is not None:
            how = "make new data keys for its files, or rotate the KEKs of its table"
        return (
            f"{self.name} has wrapped {self.count:,} keys or more; AES-GCM with random nonces "
            f"allows {invocations.INVOCATION_LIMIT:,}: {how}"
        )


def find_worn(
    wraps: Iterable[KnownWraps], client: KmsClient, masters: Mapping[str, MasterKey],
    is_meant: Callable[[str], object],
) -> tuple[KnownWraps, ...]:  # fmt: skip
    """Return the keys that near the limit, of those that may still be used.

    Former versions of a master key wrap nothing any more, and services that derive a key for each
    wrap have no such limit.

    Args:
        wraps: Known numbers of wraps, each key once.
        client: Client of the key service.
        masters: Master keys that the key service lists, by id; empty if it lists none.
        is_meant: Function that returns whether a dataset is under a master key, given its id.
    """
    is_limited = capabilities_of(client).random_nonces
    found = [each for each in wraps if each.count >= invocations.WARN_WRAPS]
    return tuple(
        each for each in found if is_meant(each.master_key_id)
        and (each.kek_id is not None or (is_limited and _may_wrap(each, masters)))
    )  # fmt: skip


def _may_wrap(wraps: KnownWraps, masters: Mapping[str, MasterKey]) -> bool:
    master = masters.get(wraps.master_key_id)
    if master is None or master.version is None or wraps.version is None:
        return True
    return wraps.version == str(master.version)

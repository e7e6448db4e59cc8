"""Readers that require a dataset's seal: each file must be the one that its writer sealed.

A reader opens the footer of a file in any case, and compares its hash with the seal. The footer of
a signed file has the hashes of its chunks, which the reader compares as well: so what it reads is
what was sealed, without reading whole files first.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import IntegrityError
from modcrypt.io.places import Place, Root, Stamp
from modcrypt.io.stores import locate
from modcrypt.kms.signing.ledger import Ledger, Seen
from modcrypt.kms.signing.seal_format import Seal, dataset_ledger, load_newest
from modcrypt.kms.signing.signing_keys import VerifyingKey
from modcrypt.kms.signing.trusted_writers import make_trust
from modcrypt.kms.signing.witnesses import check_witnesses
from modcrypt.parquet.signatures.signers import SealedFooter
from modcrypt.runtime.fork_safety import fork_safe


def load_seal(folder: Place, required: RequiredSeal) -> Seal:
    """Return the seal of a dataset's folder.

    Raises:
        IntegrityError: There is no seal, too few of the keys signed it, or it is an older one, has
            expired or is that of another dataset.
        FormatError: The seal is signed, but malformed.
    """
    ledger = dataset_ledger(folder)
    if (seal := load_newest(ledger, make_trust(required.signed_by, required.needed))) is None:
        raise IntegrityError(f"{ledger.place.address} does not exist: the dataset is not sealed")
    with ledger.name_errors():
        seal.statement.check(required.at_least, "dataset", required.dataset)
        if required.witness_store is not None:
            store = _place_of(required.witness_store)
            check_witnesses(ledger, seal.statement, required.witnessed_by, store)
    if required.after is not None:
        trust = make_trust(required.signed_by, required.needed)
        ledger.check_follows(seal.statement, trust, Seen.parse(required.after))
    return seal


@dataclass(frozen=True)
class RequiredSeal:
    """The requirement that files are those of a dataset's seal.

    A seal that was read is kept until its file changes; the new one must not be older.

    Args:
        signed_by: Keys of writers, of whom `needed` must have signed the seal.
        at_least: Number that the seal must have at least: the last one that you have seen.
        root: Folder of the dataset. None for the folder that is read.
        needed: Number of keys that must have signed.
        dataset: Id that the dataset must have; None accepts another dataset of the same writers.
        witnessed_by: Keys of witnesses, each of whom must have countersigned the seal.
        witness_store: Folder of their statements, which the store of the dataset cannot change.
        after: `NUMBER:HASH` of a seal that you have seen, as results name it: the newest one must
            be it, or follow it, signed by those who could sign. Unlike a number alone, it detects
            another history with as many seals, and a writer who ignores that it may not sign.
    """

    signed_by: tuple[VerifyingKey, ...]
    at_least: int = 1
    root: Root | None = None
    needed: int = 1
    dataset: str | None = None
    witnessed_by: tuple[VerifyingKey, ...] = ()
    witness_store: Root | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        if self.witnessed_by and self.witness_store is None:
            raise ValueError("witnesses need witness_store, the folder of their statements")
        if self.after is not None:
            Seen.parse(self.after)

    def with_root(self, root: Root) -> RequiredSeal:
        """Return the requirement for the dataset at `root`, unless it has a root."""
        return replace(self, root=root if self.root is None else self.root)

    def for_file(self, place: Place | None) -> SealedFooter:
        """Return the statement of the seal about the file at a place.

        Raises:
            ValueError: The file has no place, or its dataset is unknown.
            ModcryptError, OSError: As `load_seal`.
        """
        folder = self._folder_of(place)
        path = None if place is None else place.inside(folder)
        if path is None:
            raise ValueError("the file is not inside root, the folder of the sealed dataset")
        found = _LAST.read(folder, self).files.get(path)
        return SealedFooter(None if found is None else found.footer, known=found is not None)

    def find_missing(self, folder: Place, paths: Iterable[str]) -> list[str]:
        """Return the sealed files below a folder that are not among these paths inside it.

        `folder` may be a file that does not exist; it is missing itself if it was sealed.
        """
        root = self._folder_of(folder)
        inside = folder.inside(root)
        start = "" if inside is None else f"{inside}/"
        present = {f"{start}{path}" for path in paths}
        sealed = _LAST.read(root, self).files
        below = (path for path in sealed if path.startswith(start) or path == inside)
        return [path for path in below if path not in present]

    def check_complete(self, folder: Place, paths: Iterable[str]) -> None:
        """Raise IntegrityError if sealed files below a folder are not among these paths."""
        if missing := self.find_missing(folder, paths):
            more = f" and {len(missing) - 1:,} more" * (len(missing) > 1)
            raise IntegrityError(f"{missing[0]}{more}: in the seal of the dataset, but missing")

    def _folder_of(self, place: Place | None) -> Place:
        if self.root is not None:
            return _place_of(self.root)
        if place is None or place.root is None:
            raise ValueError(
                "the dataset of the file is unknown, so its seal cannot be found; pass root=, the "
                "dataset's folder"
            )
        return Place(place.filesystem, place.root)


def _place_of(root: Root) -> Place:
    return root if isinstance(root, Place) else Place(*locate(root, None))


_KEPT = 2  # number of seals that are kept: one for a million files takes some hundred megabytes

_TRUSTED_FOR = 1.0
"""Seconds in which a store is not asked again whether a seal has changed: that is a request."""


@dataclass(frozen=True, slots=True)
class _KnownSeal:
    seal: Seal
    filesystem: Any  # lives as long as its id is part of a key
    stamp: Stamp | None
    checked: float  # seconds of the monotonic clock


class _LastSeals:
    """The last seals that this process has read, for the files that are opened one by one."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], _KnownSeal] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def read(self, folder: Place, required: RequiredSeal) -> Seal:
        """Return the seal of a folder; raise as `load_seal`."""
        ledger = dataset_ledger(folder)
        key = (
            id(folder.filesystem), ledger.place.full_name, required.signed_by, required.needed,
            required.witnessed_by, str(required.witness_store), required.after,
        )  # fmt: skip
        with self._lock:
            known, now = self._known.get(key), time.monotonic()
            is_local = folder.filesystem is None
            if known is None or is_local or now - known.checked > _TRUSTED_FOR:
                known = self._known[key] = _look_again(ledger, required, known)
            self._known.move_to_end(key)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        with ledger.name_errors():
            known.seal.statement.check(required.at_least, "dataset", required.dataset)
        return known.seal


def _look_again(ledger: Ledger, required: RequiredSeal, known: _KnownSeal | None) -> _KnownSeal:
    """Return a seal as it is now; it must not be older than the one that is known."""
    stamp, now = ledger.place.stamp(), time.monotonic()
    if known is not None and stamp is not None and stamp == known.stamp:
        return replace(known, checked=now)
    seen = 0 if known is None else known.seal.statement.sequence
    seal = load_seal(ledger.folder, replace(required, at_least=max(seen, required.at_least)))
    if known is not None and seen:
        trust = make_trust(required.signed_by, required.needed)
        ledger.check_follows(seal.statement, trust, Seen.of(known.seal.statement))
    return _KnownSeal(seal, ledger.folder.filesystem, stamp, now)


_LAST = _LastSeals()

"""Readers that require a dataset's seal: each file must be the one that its writer sealed.

A reader opens the footer of a file in any case, and compares its hash with the seal. The footer of
a signed file has the hashes of its chunks, which the reader compares as well: so what it reads is
what was sealed, without reading whole files first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from modcrypt.errors import IntegrityError
from modcrypt.io.places import Place, Root
from modcrypt.io.stores import locate
from modcrypt.kms.signing.seal_format import Seal, open_seal
from modcrypt.kms.signing.sealed_statements import SEAL_NAME, check_sequence, name_seal, read_seal
from modcrypt.kms.signing.signing_keys import VerifyingKey, check_verifying_keys
from modcrypt.parquet.signatures.signers import SealedFooter


def load_seal(folder: Place, signed_by: Iterable[VerifyingKey], at_least: int) -> Seal:
    """Return the seal of a dataset's folder.

    Raises:
        IntegrityError: There is no seal, none of the keys signed it, or it is an older one.
        FormatError: The seal is signed, but malformed.
        OSError: The file system reports an error.
    """
    known, place = check_verifying_keys(signed_by), folder.below(SEAL_NAME)
    data = read_seal(place)
    if data is None:
        raise IntegrityError(f"{place.path} does not exist: the dataset is not sealed")
    with name_seal(place):
        seal = open_seal(data, known)
        check_sequence(seal.statement, at_least, "dataset")
    return seal


@dataclass(frozen=True)
class RequiredSeal:
    """The requirement that files are those of a dataset's seal, which is read once.

    Args:
        signed_by: Keys of writers, one of whom must have signed the seal.
        at_least: Number that the seal must have at least: the last one that you have seen.
        root: Folder of the dataset. None for the folder that is read.
    """

    signed_by: tuple[VerifyingKey, ...]
    at_least: int = 1
    root: Root | None = None
    _loaded: dict[str, Seal] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_root(self, root: Root) -> RequiredSeal:
        """Return the requirement for the dataset at `root`, unless it has a root; not yet read."""
        return replace(self, root=root if self.root is None else self.root)

    def for_file(self, place: Place | None) -> SealedFooter:
        """Return what the seal states about the file at a place.

        Raises:
            ValueError: The file has no place, or its dataset is unknown.
            ModcryptError, OSError: As `load_seal`.
        """
        folder = self._folder_of(place)
        path = None if place is None else place.inside(folder)
        if path is None:
            raise ValueError("the file is not inside root, the folder of the sealed dataset")
        found = self._load(folder).files.get(path)
        return SealedFooter(None if found is None else found.footer, known=found is not None)

    def find_missing(self, folder: Place, paths: Iterable[str]) -> list[str]:
        """Return the sealed files below a folder that are not among these paths inside it."""
        root = self._folder_of(folder)
        inside = folder.inside(root)
        start = "" if inside is None else f"{inside}/"
        present = {f"{start}{path}" for path in paths}
        sealed = self._load(root).files
        return [path for path in sealed if path.startswith(start) and path not in present]

    def check_complete(self, folder: Place, paths: Iterable[str]) -> None:
        """Raise IntegrityError if sealed files below a folder are not among these paths."""
        if missing := self.find_missing(folder, paths):
            more = f" and {len(missing) - 1:,} more" * (len(missing) > 1)
            raise IntegrityError(f"{missing[0]}{more}: in the seal of the dataset, but missing")

    def _folder_of(self, place: Place | None) -> Place:
        if self.root is not None:
            return self.root if isinstance(self.root, Place) else Place(*locate(self.root, None))
        if place is None or place.root is None:
            raise ValueError(
                "the dataset of the file is unknown, so its seal cannot be found; pass root=, the "
                "dataset's folder"
            )
        return Place(place.filesystem, place.root)

    def _load(self, folder: Place) -> Seal:
        seal = self._loaded.get(folder.path)
        if seal is None:
            seal = self._loaded[folder.path] = load_seal(folder, self.signed_by, self.at_least)
        return seal

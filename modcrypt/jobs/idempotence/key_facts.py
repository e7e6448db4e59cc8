"""Facts about the keys of a file that decide whether they are as a policy says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from modcrypt.io.places import Place
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ColumnKey
from modcrypt.parquet.crypto.footer_opening import Footer
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import KeyMaterial, KeyReference, decode_metadata
from modcrypt.pkmt1.recipient_metadata import list_recipient_ids


class ExternalMaterial:
    """The external key material of a file, read when a key needs it.

    Args:
        place: Place of the file.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store: dict[str, str] | None = None

    def find(self, reference: KeyReference) -> KeyMaterial:
        """Return the material of a key.

        Raises:
            ModcryptError: The material cannot be read, or lacks the key.
        """
        if self._store is None:
            self._store = read_store(self._place)
        return find_material(self._store, reference)


class WrappedKey(NamedTuple):
    """How a data key is wrapped, and its length."""

    master_key_id: str
    double_wrapping: bool
    internal: bool
    bits: int | None


class KeyFacts(NamedTuple):
    """What decides whether the keys of a file are as a policy says.

    Attributes:
        has_rows: Whether the file has row groups.
        leaves: Paths of its leaf columns.
        plain: Dotted names of the plaintext columns.
        footer: The footer key.
        columns: The keys of columns that have one of their own, by dotted name.
        recipients: Ids of the recipients to whom the file is encrypted, too.
    """

    has_rows: bool
    leaves: tuple[tuple[str, ...], ...]
    plain: tuple[str, ...]
    footer: WrappedKey
    columns: tuple[tuple[str, WrappedKey], ...]
    recipients: frozenset[bytes] = frozenset()


def gather_key_facts(
    place: Place, footer: Footer, leaves: Sequence[tuple[str, ...]], plain: Iterable[str],
    columns: Mapping[str, ColumnKey],
) -> KeyFacts:  # fmt: skip
    """Return the facts about the keys of an open file.

    Args:
        place: Place of the file, for its external key material.
        footer: Footer of the file.
        leaves: Paths of its leaf columns.
        plain: Dotted names of the plaintext columns.
        columns: The keys of columns that have one of their own, by dotted name.

    Raises:
        ModcryptError: Key metadata is malformed, or external key material cannot be read.
    """
    external = ExternalMaterial(place)
    own = [(name, _describe_key(key.metadata, key.key, external)) for name, key in columns.items()]
    return KeyFacts(
        bool(footer.metadata.row_groups),
        tuple(leaves),
        tuple(plain),
        _describe_key(footer.key_metadata, footer.footer_key, external),
        tuple(own),
        list_recipient_ids(footer.key_metadata or b""),
    )


def _describe_key(
    metadata: bytes | None, key: Key | None, external: ExternalMaterial
) -> WrappedKey:
    decoded = decode_metadata(metadata or b"")
    internal = isinstance(decoded, KeyMaterial)
    material = decoded if isinstance(decoded, KeyMaterial) else external.find(decoded)
    bits = None if key is None else 8 * len(key)
    return WrappedKey(material.master_key_id, material.double_wrapping, internal, bits)

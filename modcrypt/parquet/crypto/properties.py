"""What the caller says about encrypting and decrypting a file: frozen, keyword-only values.

Everything that can be wrong without looking at a file is a ValueError or TypeError at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from os import urandom
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

from modcrypt.io.storage import Place, Root, Source
from modcrypt.keys import FileKeys, Key, KeyLike, KeyRetriever, as_key
from modcrypt.parquet.crypto.path_prefix import PathPrefix
from modcrypt.tracebacks import hide_frames

__all__ = [
    "ALGORITHMS",
    "FILE_UNIQUE_SIZE",
    "BoundRetriever",
    "Encryption",
    "FileDecryptionProperties",
    "FileEncryption",
    "FileEncryptionProperties",
    "bound",
    "check_decryption",
    "check_encryption",
    "is_keyed",
    "rooted",
]

GCM_V1 = "AES_GCM_V1"
GCM_CTR_V1 = "AES_GCM_CTR_V1"
ALGORITHMS = (GCM_V1, GCM_CTR_V1)
"""PME 4.2: all modules under GCM, or page bodies under CTR and the rest under GCM."""

FILE_UNIQUE_SIZE = 8
"""Bytes of `aad_file_unique` that every compliant writer makes."""


@dataclass(frozen=True, kw_only=True)
class FileEncryptionProperties:
    """How a file is to be encrypted (PME 4, 5).

    Args:
        footer_key: key of 16, 24 or 32 bytes; seals or signs the footer, and every column that
            is named nowhere below.
        column_keys: dotted column name to key. The name of a group covers all its leaves; the
            longest name wins. All given here are sealed with keys of their own.
        plaintext_columns: names of columns or groups to leave unencrypted, said aloud.
        footer_key_metadata: opaque bytes by which a reader's key retriever finds the footer key.
        column_key_metadata: the same by column name; names as in `column_keys`.
        aad_prefix: binds the file to its name or place: a reader that expects another prefix
            refuses the file.
        store_aad_prefix: whether the prefix is written into the file; if not, readers must
            supply it.
        plaintext_footer: leave the footer readable for legacy readers, signed with the footer
            key (PME 5.5); else the footer is sealed (PME 5.4).
        encryption_algorithm: `"AES_GCM_V1"`, or `"AES_GCM_CTR_V1"`, which does not authenticate
            page bodies.
        data_page_v2_levels: `"encrypted"` seals the whole body of a data page V2, as Arrow does;
            `"plaintext"` leaves its repetition and definition levels readable and
            unauthenticated, the only layout that parquet-java reads.
        companion: gives a context that is entered before the file is begun and left when it is
            published, or given up: so key material is kept beside it. What it yields, if anything,
            is called when all is sealed, before the file is published.

    Raises:
        ValueError: a key of another length or of zeros alone, a name given twice, key metadata
            for a column without a key, an unknown algorithm, an empty prefix.
    """

    footer_key: KeyLike
    column_keys: Mapping[str, KeyLike] = field(default_factory=dict)
    plaintext_columns: Sequence[str] = ()
    footer_key_metadata: bytes | None = field(default=None, repr=False)
    column_key_metadata: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    aad_prefix: bytes | None = None
    store_aad_prefix: bool = True
    plaintext_footer: bool = False
    encryption_algorithm: str = GCM_V1
    data_page_v2_levels: Literal["encrypted", "plaintext"] = "encrypted"
    companion: Callable[[], AbstractContextManager[Callable[[], object] | None]] = field(
        default=nullcontext, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _set(self, "footer_key", _usable(self.footer_key, "footer key"))
        keys = _column_keys(self.column_keys, _usable)
        _set(self, "column_keys", keys)
        plaintext = _names(self.plaintext_columns, "plaintext_columns")
        _set(self, "plaintext_columns", plaintext)
        _set(self, "column_key_metadata", MappingProxyType(dict(self.column_key_metadata)))
        if both := sorted(keys.keys() & set(plaintext)):
            raise ValueError(f"columns with a key and declared plaintext: {', '.join(both)}")
        if extra := sorted(self.column_key_metadata.keys() - keys.keys()):
            raise ValueError(f"key metadata for columns without a key: {', '.join(extra)}")
        if self.encryption_algorithm not in ALGORITHMS:
            raise ValueError(f"encryption_algorithm is one of {', '.join(ALGORITHMS)}")
        _check_bytes(self.footer_key_metadata, "footer_key_metadata")
        for name, metadata in self.column_key_metadata.items():
            _check_bytes(metadata, f"column_key_metadata of {name}")
        _check_bytes(self.aad_prefix, "aad_prefix")
        if self.aad_prefix is not None and not self.aad_prefix:
            raise ValueError("an AAD prefix has at least one byte; leave it None for no prefix")
        if self.data_page_v2_levels not in ("encrypted", "plaintext"):
            raise ValueError('data_page_v2_levels is "encrypted" or "plaintext"')


class FileEncryption(Protocol):
    """What gives each file properties of its own: with fresh keys that a key service wraps.

    `column_keys` and `plaintext_columns` name columns as in `FileEncryptionProperties`, for what
    is checked before a key is asked for.
    """

    @property
    def column_keys(self) -> Mapping[str, object]:
        """Names of the columns with keys of their own."""

    @property
    def plaintext_columns(self) -> Sequence[str]:
        """Names of the columns to leave unencrypted."""

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Give the properties of the file to be written at a place, None for a file object."""

    def for_check(self) -> FileEncryptionProperties:
        """Give properties with throw-away keys, to check names and options by."""


Encryption: TypeAlias = "FileEncryptionProperties | FileEncryption"
"""How a file, or each file, is to be encrypted."""


@dataclass(frozen=True, kw_only=True)
class FileDecryptionProperties:
    """Which keys open a file, and what the caller insists on.

    Args:
        footer_key: opens the footer and the columns under it.
        column_keys: dotted leaf path, or the name of a group around it, to key. Names that a file
            doesn't have are ignored, so that one mapping serves many files; a column that has a
            key here and lies in plaintext is an error.
        key_retriever: called with a module's key metadata where no key is given above; gives a
            key, or None.
        aad_prefix: the prefix that the file must have been written with; also supplies one that
            the file does not store. Or a function that gives it for a file's name, or a template
            that takes up the file's path inside its dataset (`KeyTools.decryption` sets it).
        aad_prefix_verifier: instead of `aad_prefix`: called with the prefix that the file stores,
            after the footer is authenticated, where it is; what is not True refuses the file.
        algorithms: names that are accepted. The name in an encrypted-footer file is not
            authenticated, and a forged `AES_GCM_CTR_V1` turns authentication off, so only
            `AES_GCM_V1` is accepted unless said otherwise.
        on_missing_key: `"error"`, or what to do with columns whose key is not given: `"drop"`
            leaves them out, `"null"` fills them with nulls (a map without one of its parts is
            null as a whole). Who can alter the footer can make a column seem to be such a one.
        require_encrypted: True refuses plaintext files; names of columns or groups refuse also
            those in which one of them is in plaintext, or under the footer key where
            `column_keys` has a key for it; False takes plaintext for what it is, keys given or
            not, unless an AAD prefix is demanded.
        check_footer_integrity: verify the signature of a plaintext footer, for which the footer
            key is needed.
        aad_file_unique_size: bytes of `aad_file_unique` when the AAD prefix is checked: the
            border between the two is not authenticated, so another length is refused.

    Raises:
        ValueError: a key of another length, an unknown algorithm, both a prefix and a verifier.
    """

    footer_key: KeyLike | None = None
    column_keys: Mapping[str, KeyLike] = field(default_factory=dict)
    key_retriever: KeyRetriever | None = field(default=None, repr=False)
    aad_prefix: bytes | Callable[[str], bytes] | None = None
    aad_prefix_verifier: Callable[[bytes], bool] | None = None
    algorithms: Sequence[str] = (GCM_V1,)
    on_missing_key: Literal["error", "drop", "null"] = "error"
    require_encrypted: bool | Sequence[str] = True
    check_footer_integrity: bool = True
    aad_file_unique_size: int = FILE_UNIQUE_SIZE

    def __post_init__(self) -> None:
        if self.footer_key is not None:
            _set(self, "footer_key", _any_key(self.footer_key, "footer key"))
        _set(self, "column_keys", _column_keys(self.column_keys, _any_key))
        retriever = self.key_retriever
        if retriever is not None and not (callable(retriever) or hasattr(retriever, "for_file")):
            raise TypeError("key_retriever is called with key metadata: give a function")
        if not callable(self.aad_prefix):
            _check_bytes(self.aad_prefix, "aad_prefix")
        _set(self, "algorithms", _names(self.algorithms, "algorithms"))
        if not self.algorithms or not set(self.algorithms) <= set(ALGORITHMS):
            raise ValueError(f"algorithms are one or more of {', '.join(ALGORITHMS)}")
        if self.on_missing_key not in ("error", "drop", "null"):
            raise ValueError('on_missing_key is "error", "drop" or "null"')
        if not isinstance(self.require_encrypted, bool):
            names = _names(self.require_encrypted, "require_encrypted")
            _set(self, "require_encrypted", names)
        if self.aad_prefix_verifier is not None:
            if not callable(self.aad_prefix_verifier):
                raise TypeError("aad_prefix_verifier is called with an AAD prefix: give a function")
            if self.aad_prefix is not None:
                raise ValueError("give aad_prefix or aad_prefix_verifier, not both")
        _set(self, "_token", urandom(16).hex())

    def __dask_tokenize__(self) -> str:
        """Tell these properties apart from all others, for Dask: it says nothing of the keys."""
        return str(self.__dict__["_token"])

    def __reduce__(self) -> tuple[Any, ...]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["column_keys"] = dict(self.column_keys)  # a Key, here or elsewhere, does not pickle
        return _rebuilt, (values,)


def bound(properties: FileDecryptionProperties, source: Source) -> FileDecryptionProperties:
    """Give the properties as they are for one file: its own AAD prefix, and its keys.

    Raises:
        ValueError: as `PathPrefix.of`; or the prefix depends on the name of a file without one.
        KeyRetrievalError: as the key retriever raises it.
    """
    retriever, prefix = properties.key_retriever, properties.aad_prefix
    if isinstance(prefix, PathPrefix):
        properties = replace(properties, aad_prefix=prefix.of(source.place))
    elif callable(prefix):
        if source.place is None:
            raise ValueError("the AAD prefix depends on the file's name: give a path or URL")
        properties = replace(properties, aad_prefix=prefix(source.place.name))
    if retriever is not None and hasattr(retriever, "for_file"):
        keys = retriever.for_file(source, properties.on_missing_key != "error")
        properties = replace(properties, key_retriever=BoundRetriever(keys))
    return properties


def rooted(properties: Any, root: Root) -> Any:
    """Return properties whose AAD prefixes take up paths inside `root`, unless they have a root.

    Args:
        properties: Of encryption or decryption. Those without such a prefix are returned as is.
        root: The dataset's folder.
    """
    prefix = getattr(properties, "aad_prefix", None)
    if not isinstance(prefix, PathPrefix):
        return properties
    return replace(properties, aad_prefix=prefix.under(root))


# What dataclasses generate holds keys as the caller gave them: bytes.
for _properties in (FileEncryptionProperties, FileDecryptionProperties):
    _properties.__init__ = hide_frames(_properties.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class BoundRetriever:
    """A key retriever that knows its file already."""

    keys: FileKeys

    def __call__(self, key_metadata: bytes, column: str | None = None) -> KeyLike | None:
        """Give the key of a column, or of the footer; None when there is none."""
        return self.keys.retrieve(key_metadata, column)


def is_keyed(encryption: object) -> TypeGuard[FileEncryption]:
    """Tell what makes keys for each file; `isinstance` of a protocol takes 20 µs."""
    return hasattr(encryption, "for_file")


def check_encryption(encryption: object) -> None:
    """Raise a TypeError for what is something else."""
    if not isinstance(encryption, FileEncryptionProperties) and not is_keyed(encryption):
        kind = type(encryption).__name__
        hint = "; KeyTools.encryption(policy) gives them" * hasattr(encryption, "encryption")
        raise TypeError(f"properties are FileEncryptionProperties, not {kind}{hint}")


def check_decryption(properties: FileDecryptionProperties) -> None:
    """Raise a TypeError for what is something else."""
    if not isinstance(properties, FileDecryptionProperties):
        raise TypeError(f"properties are FileDecryptionProperties, not {type(properties).__name__}")


def _rebuilt(values: dict[str, Any]) -> FileDecryptionProperties:
    return FileDecryptionProperties(**values)


def _set(target: object, name: str, value: object) -> None:
    object.__setattr__(target, name, value)  # frozen for everyone else


def _check_bytes(value: bytes | None, what: str) -> None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"{what} is bytes, not {type(value).__name__}")


def _names(names: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str | bytes):
        raise ValueError(f"{what} takes several names, not one string")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what}: names are str")
    return tuple(names)


def _column_keys(
    keys: Mapping[str, KeyLike], check: Callable[[KeyLike, str], Key]
) -> Mapping[str, Key]:
    if not isinstance(keys, Mapping):
        raise TypeError(f"column_keys maps names to keys, it is no {type(keys).__name__}")
    names = _names(list(keys), "column_keys")
    checked = {name: check(keys[name], f"key of {name}") for name in names}
    return MappingProxyType(checked)  # what was checked can't be changed


def _any_key(key: KeyLike, what: str) -> Key:
    try:
        return as_key(key)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None


def _usable(key: KeyLike, what: str) -> Key:
    """Take a key for sealing. Zeros are never meant, and parquet-java refuses them."""
    checked = _any_key(key, what)
    if checked.is_zero():
        raise ValueError(f"the {what} is all zeros")
    return checked

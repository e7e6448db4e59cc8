"""Properties for encrypting and decrypting a file: frozen, keyword-only values.

Construction raises ValueError or TypeError for every mistake that is visible without the file.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from os import PathLike, urandom
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

from modcrypt.io.places import Place, Root
from modcrypt.io.sources import Source
from modcrypt.keys import FileKeys, Key, KeyLike, KeyRetriever, Secret, as_given_key, wrap_key
from modcrypt.module_ids import ALGORITHMS, GCM_V1
from modcrypt.parquet.crypto.path_prefix import PathPrefix, require_place
from modcrypt.parquet.signatures.signers import (
    DatasetSeal,
    SealedFooter,
    Signer,
    Verifier,
    check_signer,
    list_verifiers,
)
from modcrypt.report.short_repr import ShortRepr
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.former_names import accept_former_attributes
from modcrypt.runtime.lazy_names import load
from modcrypt.runtime.tracebacks import hide_init_frames

MAX_AAD_SIZE = 64 << 10
"""Longest AAD prefix that is written, and AAD prefix or file-unique read from a file, in bytes."""

FILE_UNIQUE_SIZE = 8  # size of `aad_file_unique` in bytes, as every compliant writer creates it


@hide_init_frames  # the generated method holds the caller's keys as bytes
@dataclass(frozen=True, kw_only=True, repr=False)
class FileEncryptionProperties(ShortRepr):
    """The keys and options for encrypting a file (PME 4, 5).

    Args:
        footer_key: Key of 16, 24 or 32 bytes; it encrypts or signs the footer, and encrypts every
            column that no option below names.
        column_keys: Keys by dotted column name. The name of a group covers all its leaves; the
            longest name wins. Each column named here is encrypted with its own key.
        plaintext_columns: Names of columns or groups to leave unencrypted; every column not
            listed is encrypted.
        footer_key_metadata: Opaque bytes by which a reader's key retriever finds the footer key, or
            a function from the file AAD to them, which is called when the footer is made.
        column_key_metadata: Opaque bytes for each column's key, by names as in `column_keys`.
        aad_prefix: Prefix that binds the file to its name or place: a reader that expects another
            prefix refuses the file.
        store_aad_prefix: Whether the prefix is written into the file; if not, readers must
            supply it.
        plaintext_footer: Whether to leave the footer readable for legacy readers, signed with the
            footer key (PME 5.5); else the footer is encrypted (PME 5.4).
        encryption_algorithm: `"AES_GCM_V1"`, or `"AES_GCM_CTR_V1"`, which does not authenticate
            page bodies.
        data_page_v2_levels: `"encrypted"` to encrypt the whole body of a data page V2, as Arrow
            does; `"plaintext"` to leave its repetition and definition levels readable and
            unauthenticated, the only layout that parquet-java reads.
        companion: Function that returns a context manager, for example to write key material
            beside the file. The context is entered before the file is started, and left when it is
            published or given up. If it yields a function, that is called after the last byte is
            encrypted and before the file is published.
        signing_key: `SigningKey` of the writer: readers that require its signature detect what
            other readers have made or altered. None to not sign files.
        subjects: `modcrypt.subjects.Subjects` with the columns whose values are encrypted one by
            one, under the keys of their subjects. None for no such columns.

    Raises:
        ValueError: A key has another length or consists of zeros, a name is given twice, a column
            has key metadata but no key, the algorithm is unknown, or the prefix is empty or longer
            than 64 KiB.
    """

    footer_key: KeyLike
    column_keys: Mapping[str, KeyLike] = field(default_factory=dict)
    plaintext_columns: Sequence[str] = ()
    footer_key_metadata: bytes | Callable[[bytes], bytes] | None = field(default=None, repr=False)
    column_key_metadata: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    aad_prefix: bytes | None = None
    store_aad_prefix: bool = True
    plaintext_footer: bool = False
    encryption_algorithm: str = GCM_V1
    data_page_v2_levels: Literal["encrypted", "plaintext"] = "encrypted"
    companion: Callable[[], AbstractContextManager[Callable[[], object] | None]] = field(
        default=nullcontext, repr=False, compare=False
    )
    signing_key: Signer | None = None
    subjects: SubjectKeys | None = field(default=None, repr=False, compare=False)

    @property
    def has_one_key(self) -> bool:
        """True if all that a reader of the footer sees is under one key."""
        return not (self.plaintext_footer or self.column_keys or self.plaintext_columns)

    def __post_init__(self) -> None:
        _set_frozen(self, "footer_key", _check_encryption_key(self.footer_key, "footer key"))
        keys = _check_column_keys(self.column_keys, _check_encryption_key)
        _set_frozen(self, "column_keys", keys)
        plaintext = check_name_list(self.plaintext_columns, "plaintext_columns")
        _set_frozen(self, "plaintext_columns", plaintext)
        _check_mapping(self.column_key_metadata, "column_key_metadata", "bytes")
        _set_frozen(self, "column_key_metadata", MappingProxyType(dict(self.column_key_metadata)))
        _check_switches(self, "store_aad_prefix", "plaintext_footer")
        if both := sorted(keys.keys() & set(plaintext)):
            raise ValueError(
                f"columns have a key, but are also declared plaintext: {', '.join(both)}"
            )
        if extra := sorted(self.column_key_metadata.keys() - keys.keys()):
            raise ValueError(
                f"column_key_metadata names columns that column_keys lacks: {', '.join(extra)}"
            )
        if self.encryption_algorithm not in ALGORITHMS:
            raise ValueError(f"encryption_algorithm must be one of {', '.join(ALGORITHMS)}")
        if self.data_page_v2_levels not in ("encrypted", "plaintext"):
            raise ValueError('data_page_v2_levels must be "encrypted" or "plaintext"')
        _check_footer_key_metadata(self.footer_key_metadata)
        check_signer(self.signing_key)
        for name, metadata in self.column_key_metadata.items():
            _check_bytes(metadata, f"column_key_metadata of {name}")
        _check_bytes(self.aad_prefix, "aad_prefix")
        if self.aad_prefix is not None and not 0 < len(self.aad_prefix) <= MAX_AAD_SIZE:
            raise ValueError(
                f"aad_prefix is empty or longer than {MAX_AAD_SIZE} bytes; pass None for no prefix"
            )


def _check_footer_key_metadata(metadata: bytes | Callable[[bytes], bytes] | None) -> None:
    if callable(metadata):
        return
    _check_bytes(metadata, "footer_key_metadata")
    if not metadata:
        return
    from modcrypt.pkmt1.recipient_metadata import may_hold_recipients

    if may_hold_recipients(metadata):
        raise ValueError(
            "the key metadata has keys for recipients, which open only the file that they were "
            "made for; pass encryption with the recipients of the new file"
        )


CELLS = b"modcrypt.subjects"
"""Key of the metadata of an Arrow field with cells: values that are encrypted one by one."""


class SubjectKeys(Protocol):
    """The keys of subjects, for values that are encrypted one by one, see `modcrypt.subjects`."""

    @property
    def restored(self) -> Mapping[str, object]:
        """The columns that are read as cells although their files do not say so."""

    def restore(self, schema: Any) -> SubjectKeys:
        """Return the keys with `restored` columns: those to write, with types of this schema."""

    def reader(self, session: Any) -> Any:
        """Return an object that plans the reads of a file, with the types of the values."""

    def writer(self, schema: Any) -> Any:
        """Return an object that encrypts values of rows with a schema; None to encrypt none."""

    def check_cells(self, metadata: Any) -> None:
        """Raise PlaintextError unless the values in a footer's file are encrypted already."""


class FileEncryption(Protocol):
    """A source of separate properties for each file, with new keys that a key service wraps.

    `column_keys` and `plaintext_columns` name columns as in `FileEncryptionProperties`; they allow
    checks before any key is requested.
    """

    @property
    def column_keys(self) -> Mapping[str, object]:
        """Names of the columns that have their own keys."""

    @property
    def plaintext_columns(self) -> Sequence[str]:
        """Names of the columns to leave unencrypted."""

    @property
    def subjects(self) -> SubjectKeys | None:
        """The keys of values that are encrypted one by one; None for no such values."""

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Return the properties of a new file at a place; None stands for a file object."""

    def for_check(self) -> FileEncryptionProperties:
        """Return properties with throw-away keys, for checks of names and options."""


Encryption: TypeAlias = FileEncryptionProperties | FileEncryption
"""The properties of one file, or a source of properties for many files."""


@hide_init_frames
@accept_former_attributes(algorithms="accept_algorithms")
@dataclass(frozen=True, kw_only=True, repr=False)
class FileDecryptionProperties(ShortRepr):
    """The keys for decrypting a file, and the caller's requirements.

    Args:
        footer_key: Key that decrypts the footer and the columns under the footer key.
        column_keys: Keys by dotted leaf path or by the name of a group around it. Names that a file
            does not have are ignored, so that one mapping serves many files. A column that has a
            key here but is plaintext is an error.
        key_retriever: Function that is called with a module's key metadata if no key is given
            above; it returns a key, or None.
        aad_prefix: Prefix that the file must have been written with, whether the file stores it or
            not. `b""` opens files whose readers must supply the empty prefix, as Polars can write
            them, and demands nothing of other files without a prefix. Alternatively a function
            that returns the prefix for a file's name, or a template that inserts the file's path
            inside its dataset (set by `KeyTools.decryption`).
        aad_prefix_verifier: Function that replaces `aad_prefix`: it is called with the prefix that
            the file stores, after the footer is authenticated if it is. Any result but True
            refuses the file.
        accept_algorithms: Names of the accepted algorithms. The name in a file with an encrypted
            footer is not authenticated, and a forged `AES_GCM_CTR_V1` turns authentication off, so
            only `AES_GCM_V1` is accepted by default.
        on_missing_key: Treatment of columns whose key is missing: `"error"`, `"drop"` to leave
            them out, or `"null"` to fill them with nulls (a map without one of its parts is null
            as a whole). Anyone who can alter the footer can make a column's key seem missing.
        require_encrypted: True to refuse plaintext files. Names of columns or groups to also refuse
            files in which one of them is plaintext, or under the footer key although `column_keys`
            has a key for it. False to accept plaintext, even if keys are given, unless an AAD
            prefix is required.
        check_footer_integrity: Whether to verify the signature of a plaintext footer, which needs
            the footer key.
        aad_file_unique_size: Size of `aad_file_unique` in bytes that is required when the AAD
            prefix is checked, because the border between the two is not authenticated.
        signed_by: `VerifyingKey` objects, one of which must have signed the file; empty to accept
            files without a signature, and not to check any.
        seal: `RequiredSeal` of the dataset, whose files must be those that a writer sealed; it
            needs `signed_by`, since a seal vouches for footers, and signatures for what they name.
        subjects: `modcrypt.subjects.Subjects` with the keys of values that are encrypted one by
            one. None to read these values as they are, in binary.

    Raises:
        ValueError: A key has another length, an algorithm is unknown, both a prefix and a
            verifier are given, or a seal without `signed_by`.
    """

    footer_key: KeyLike | None = None
    column_keys: Mapping[str, KeyLike] = field(default_factory=dict)
    key_retriever: KeyRetriever | None = field(default=None, repr=False)
    aad_prefix: bytes | Callable[[str], bytes] | None = None
    aad_prefix_verifier: Callable[[bytes], bool] | None = None
    accept_algorithms: Sequence[str] = (GCM_V1,)
    on_missing_key: Literal["error", "drop", "null"] = "error"
    require_encrypted: bool | Sequence[str] = True
    check_footer_integrity: bool = True
    aad_file_unique_size: int = FILE_UNIQUE_SIZE
    signed_by: Sequence[Verifier] = ()
    seal: DatasetSeal | SealedFooter | None = None
    subjects: SubjectKeys | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.footer_key is not None:
            _set_frozen(self, "footer_key", _check_key(self.footer_key, "footer key"))
        _set_frozen(self, "column_keys", _check_column_keys(self.column_keys, _check_key))
        retriever = self.key_retriever
        if retriever is not None and not (callable(retriever) or hasattr(retriever, "for_file")):
            raise TypeError("key_retriever must be a function of key metadata")
        if not callable(self.aad_prefix):
            _check_bytes(self.aad_prefix, "aad_prefix")
        _check_switches(self, "check_footer_integrity")
        names = check_name_list(self.accept_algorithms, "accept_algorithms")
        _set_frozen(self, "accept_algorithms", names)
        if not names or not set(names) <= set(ALGORITHMS):
            raise ValueError(f"accept_algorithms must be one or more of {', '.join(ALGORITHMS)}")
        if self.on_missing_key not in ("error", "drop", "null"):
            raise ValueError('on_missing_key must be "error", "drop" or "null"')
        if not isinstance(self.require_encrypted, bool):
            names = check_name_list(self.require_encrypted, "require_encrypted")
            _set_frozen(self, "require_encrypted", names)
        if self.aad_prefix_verifier is not None:
            if not callable(self.aad_prefix_verifier):
                raise TypeError("aad_prefix_verifier must be a function of an AAD prefix")
            if self.aad_prefix is not None:
                raise ValueError("pass aad_prefix or aad_prefix_verifier, not both")
        _set_frozen(self, "signed_by", list_verifiers(self.signed_by))
        if self.seal is not None and not self.signed_by:
            raise ValueError("a seal needs signed_by: it vouches for footers, but not for pages")
        _set_frozen(self, "_token", urandom(16).hex())

    def __dask_tokenize__(self) -> str:
        """Return a random token that identifies these properties for Dask and reveals no key."""
        return str(self.__dict__["_token"])

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # A mapping proxy cannot be pickled. A Key refuses pickling, here and elsewhere.
        values["column_keys"] = dict(self.column_keys)
        return _rebuild_decryption, (values,)


def bind_to_file(properties: FileDecryptionProperties, source: Source) -> FileDecryptionProperties:
    """Return the properties for one file, with its AAD prefix and a retriever of its keys.

    This comes before anything else is done with a file: templates of prefixes, retrievers that
    depend on the file and the seal of a dataset become those of this file. Code that opens footers
    and chunks relies on it.

    A retriever with `properties_of` replaces all properties: it knows what each file of a dataset
    must be like.

    Raises:
        ValueError: The prefix depends on the place or name of a file without one, or on a root
            that is unknown or does not contain the file.
        KeyRetrievalError: The key retriever raises it.
    """
    properties = properties_of_file(properties, source)
    retriever, prefix = properties.key_retriever, properties.aad_prefix
    if isinstance(prefix, PathPrefix):
        properties = replace(properties, aad_prefix=prefix.of(source.place))
    elif callable(prefix):
        found = prefix(require_place(source.place).name)
        _require_bytes(found, "what aad_prefix returns")  # None would require no prefix
        properties = replace(properties, aad_prefix=found)
    if retriever is not None and hasattr(retriever, "for_file"):
        keys = retriever.for_file(source, properties.on_missing_key != "error")
        properties = replace(properties, key_retriever=BoundRetriever(keys))
    if (seal := required_seal(properties)) is not None:
        properties = replace(properties, seal=seal.for_file(source.place))
    return properties


def properties_of_file(
    properties: FileDecryptionProperties, source: Source
) -> FileDecryptionProperties:
    """Return the properties that a retriever has for a file; the same for other retrievers."""
    properties_of = getattr(properties.key_retriever, "properties_of", None)
    return properties if properties_of is None else properties_of(source, properties)


def required_seal(properties: FileDecryptionProperties) -> DatasetSeal | None:
    """Return the seal that files of a dataset must have; None if none is required."""
    seal = properties.seal
    return None if isinstance(seal, SealedFooter) else seal


def set_prefix_root(properties: Any, root: Root) -> Any:
    """Return properties whose AAD prefix template uses paths inside `root`, unless it has a root.

    The same holds for a required seal. Other properties are returned unchanged.
    """
    prefix = getattr(properties, "aad_prefix", None)
    if isinstance(prefix, PathPrefix):
        properties = replace(properties, aad_prefix=prefix.with_root(root))
    seal = getattr(properties, "seal", None)
    if seal is not None and not isinstance(seal, SealedFooter):
        properties = replace(properties, seal=seal.with_root(root))
    return properties


def for_dataset(decryption: AnyDecryption, root: Root | None) -> FileDecryptionProperties:
    """Return the properties of the files of a dataset, which share keys.

    Paths in prefixes are inside `root`, and the key retriever is called once for each key metadata.
    """
    properties = as_decryption(decryption)
    if root is not None:
        properties = set_prefix_root(properties, root)
    ask = properties.key_retriever
    if ask is None or not callable(ask):  # A retriever bound to a file caches keys itself.
        return properties
    answers: dict[bytes, Secret[KeyLike | None]] = {}
    locks: dict[bytes, threading.Lock] = {}

    def find_key(metadata: bytes) -> KeyLike | None:
        with locks.setdefault(metadata, fork_safe(threading.Lock())):
            if metadata not in answers:
                answers[metadata] = Secret(ask(metadata))
            return answers[metadata]()

    return replace(properties, key_retriever=find_key)


class KeySource:
    """Something that keys come from and `modcrypt.kms.key_forms` makes properties of."""

    __slots__ = ()


class KeySettings(KeySource, ABC):
    """Keys that become properties where they are used, such as `modcrypt.Settings`."""

    @abstractmethod
    def encryption(self) -> Encryption:
        """Return the properties that encrypt files."""

    @abstractmethod
    def decryption(self) -> FileDecryptionProperties:
        """Return the properties that decrypt files."""


class BoundRetriever:
    """A key retriever that is bound to one file."""

    __slots__ = ("keys",)

    def __init__(self, keys: FileKeys) -> None:
        self.keys = keys

    @property
    def anyone_can_wrap(self) -> bool:
        """True if everyone who has public keys can make a file whose keys are retrieved."""
        return bool(getattr(self.keys, "anyone_can_wrap", False))

    def __call__(self, key_metadata: bytes, column: str | None = None) -> KeyLike | None:
        """Return the key of a column, or of the footer; None if there is none."""
        return self.keys.retrieve(key_metadata, column)

    def accept_file(self, footer_key_metadata: bytes | None, file_aad: bytes) -> None:
        """Pass the keys what the file states about itself, if they are bound to it."""
        if (accept := getattr(self.keys, "accept_file", None)) is not None:
            accept(footer_key_metadata, file_aad)

    def check_missing(self, columns: Iterable[str]) -> None:
        """Raise KeyNotFoundError if the keys allow no leniency for columns without a key."""
        if (check := getattr(self.keys, "check_missing", None)) is not None:
            check(columns)


AnyEncryption: TypeAlias = Encryption | KeySource | KeyLike | PathLike[str] | Sequence[KeySource]
"""The forms of `encryption=`, see `modcrypt.kms.key_forms`."""

AnyDecryption: TypeAlias = FileDecryptionProperties | KeySource | KeyLike | PathLike[str]
"""The forms of `decryption=`, see `modcrypt.kms.key_forms`."""


def is_keyed(encryption: object) -> TypeGuard[FileEncryption]:
    """Return whether this is a `FileEncryption`; `isinstance` of a protocol would take 20 µs."""
    return hasattr(encryption, "for_file") and not isinstance(encryption, KeySource)


def as_encryption(encryption: AnyEncryption) -> Encryption:
    """Return the `Encryption` for any form; raise as `key_forms.make_encryption`."""
    if isinstance(encryption, FileEncryptionProperties) or is_keyed(encryption):
        return encryption
    given = wrap_key(encryption)
    if isinstance(given, Key):  # the usual form, without the time that key services take to load
        return FileEncryptionProperties(footer_key=given)
    made: Encryption = load("modcrypt.kms.key_forms", "make_encryption")(given)
    return made


def as_decryption(decryption: AnyDecryption) -> FileDecryptionProperties:
    """Return the properties for any form; raise as `key_forms.make_decryption`."""
    if isinstance(decryption, FileDecryptionProperties):
        return decryption
    given = wrap_key(decryption)
    if isinstance(given, Key):  # the usual form, without the time that key services take to load
        return FileDecryptionProperties(footer_key=given)
    made: FileDecryptionProperties = load("modcrypt.kms.key_forms", "make_decryption")(given)
    return made


def _rebuild_decryption(values: dict[str, Any]) -> FileDecryptionProperties:
    return FileDecryptionProperties(**values)


def _set_frozen(target: object, name: str, value: object) -> None:
    object.__setattr__(target, name, value)  # the class is frozen


def _check_bytes(value: bytes | None, what: str) -> None:
    if value is not None:
        _require_bytes(value, what)


def _require_bytes(value: object, what: str) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")


def check_name_list(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return names as a tuple; raise ValueError for one string, TypeError for other values."""
    if isinstance(names, str | bytes):
        raise ValueError(f"{what} takes several names, not one string")
    if not isinstance(names, Iterable) or isinstance(names, Mapping):  # whose values would be lost
        raise TypeError(f"{what} must be a list of names, not {type(names).__name__}")
    checked = tuple(names)  # an iterator ends after its first use
    if not all(isinstance(name, str) for name in checked):
        raise TypeError(f"{what}: names must be str")
    return checked


def _check_column_keys(
    keys: Mapping[str, KeyLike], check: Callable[[KeyLike, str], Key]
) -> Mapping[str, Key]:
    _check_mapping(keys, "column_keys", "keys")
    names = check_name_list(list(keys), "column_keys")
    checked = {name: check(keys[name], f"key of {name}") for name in names}
    return MappingProxyType(checked)  # read-only, so that checked keys stay unchanged


def _check_mapping(value: object, what: str, values: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must map names to {values}, not be a {type(value).__name__}")


def _check_switches(properties: object, *names: str) -> None:
    """Raise TypeError unless these are True or False: None or "no" may waive what was meant."""
    for name in names:
        value = getattr(properties, name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {type(value).__name__}")


def _check_key(key: KeyLike, what: str) -> Key:
    try:
        return as_given_key(key)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None


def _check_encryption_key(key: KeyLike, what: str) -> Key:
    """Return a key for encryption; refuse zeros, a likely mistake that parquet-java refuses too."""
    checked = _check_key(key, what)
    if checked.is_zero():
        raise ValueError(f"the {what} is all zeros")
    return checked

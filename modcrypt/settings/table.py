"""The table of settings: each is declared here, with its name, type, default and one text.

Policies, declarations of lakes, options of Spark and of the command line, JSON Schemas and tables
of the documentation derive from it. To add a setting, add a field here, and use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modcrypt.module_ids import ALGORITHMS, GCM_V1
from modcrypt.settings.kinds import (
    COUNT,
    FLAG,
    KEY_BITS,
    NAME,
    NAMES,
    TEXT,
    URI,
    Kind,
    number_from,
    one_of,
    table_of,
)  # fmt: skip
from modcrypt.settings.setting import NO_OPTION, NOT_ON_SPARK, declare, list_faults, settings_of

MAX_CACHE_LIFETIME = 7 * 24 * 3600
"""Upper limit of `cache_lifetime_seconds`, so that a revocation reaches running processes."""

LEVELS = ("encrypted", "plaintext")

_RARE = {NO_OPTION: "rarely changed; a policy sets it"}
_IN_POLICY = {NO_OPTION: "what has subjects is declared; a policy sets it"}
_KEY_TABLE = table_of(NAMES, "a table of master keys and their columns")
_LIFETIME = Kind(
    f"a number, 0 to {MAX_CACHE_LIFETIME}",
    {"type": "number", "minimum": 0, "maximum": MAX_CACHE_LIFETIME},
)
# `check_reference` checks what follows, without repeating a value that may be a secret.
_REFERENCE = Kind("a reference, such as file:PATH or env:NAME", NAME.schema)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)  # subclasses have their own
class PolicySettings:
    """The settings of a policy, which declarations of lakes and the command line have, too.

    Args:
        footer_key: Id of the master key that wraps footer keys, and the keys of all columns that no
            setting names; or a reference to the footer key itself, without `kms`.
        column_keys: Map of master key id to the columns, or groups, whose keys it wraps; or of
            reference to the key of the columns.
        plaintext_columns: Names of columns or groups to leave unencrypted and unauthenticated.
        kms: URI of the key service, without secrets.
        kms_aad: Text to which the key service binds every wrapped key, if it supports AAD.
            Unwrapping requires the same text.
        encryption_algorithm: `AES_GCM_V1`, or `AES_GCM_CTR_V1`, which does not authenticate pages.
        plaintext_footer: Whether to sign the footer but leave it readable: schema, row counts,
            metadata of plaintext columns.
        aad_prefix: AAD prefix of each file. `{path}` in it stands for the file's path inside the
            dataset and binds the file to that path; `{name}` stands for the last part of the path,
            so that files of equal names in two folders can be swapped.
        store_aad_prefix: Whether files store the prefix; otherwise readers must supply it.
        data_page_v2_levels: Levels of data pages V2: `encrypted`, or `plaintext` for parquet-java.
        double_wrapping: Whether to wrap data keys under key encryption keys (KEKs) instead of under
            the master keys themselves, which saves calls to the key service.
        internal_key_material: Whether to store wrapped keys in the file instead of in a file beside
            it, where they can be rotated without a change of the data file.
        data_key_length_bits: Length of data keys in bits: 128, 192 or 256.
        kek_length_bits: Length of KEKs in bits: 128, 192 or 256.
        cache_lifetime_seconds: Seconds to use a KEK for writing, and to cache one for reading; at
            most a week.
        signed_by: Verifying keys of writers, as lines or paths of `.pub` files: readers refuse
            files that none of them has signed. Without any, signatures are not checked.
        seal_at_least: Number that the dataset's seal must have at least, signed by one of these
            writers: readers refuse files that are not as sealed. None requires no seal.
        subjects: Address of the vault with the keys of subjects: the path of an SQLite database, or
            a postgresql:// URI without a password.
        subject_key: Name of the column with the subjects, such as a customer's number.
        subject_columns: Names of columns or groups whose values are encrypted one by one, each
            under the key of its row's subject; `address.*` is the same as `address`.
        subject_dataset: Name that these values are bound to: they do not open in a dataset of
            another name.
    """

    footer_key: str = declare(TEXT, option="--master-key", free=True)
    column_keys: Mapping[str, Sequence[str]] = declare(
        _KEY_TABLE, default_factory=dict, option="--column-master-key", free=True
    )
    plaintext_columns: Sequence[str] = declare(
        NAMES, default=(), option="--plaintext-column", free=True, group="Encryption"
    )
    kms: str | None = declare(URI, default=None)
    kms_aad: str | None = declare(TEXT, default=None, absent=_RARE, free=True)
    encryption_algorithm: str = declare(
        one_of(*ALGORITHMS),
        default=GCM_V1,
        option="--algorithm",
        free=True,
        group="Encryption",
        rare=True,
    )
    plaintext_footer: bool = declare(FLAG, default=False, free=True, group="Encryption", rare=True)
    aad_prefix: str | None = declare(NAME, default=None, free=True)
    store_aad_prefix: bool = declare(
        FLAG,
        default=True,
        option="--no-store-aad-prefix",
        off="Do not store the AAD prefix; readers must supply it.",
        free=True,
        group="AAD prefix",
        rare=True,
    )
    data_page_v2_levels: str = declare(
        one_of(*LEVELS),
        default="encrypted",
        option="--v2-levels",
        free=True,
        group="Encryption",
        rare=True,
    )
    double_wrapping: bool = declare(
        FLAG,
        default=True,
        option="--single-wrapping",
        off="Wrap data keys under master keys directly, in more calls of the key service.",
        free=True,
        group="Key service",
        rare=True,
    )
    internal_key_material: bool = declare(
        FLAG,
        default=True,
        option="--external-key-material",
        off="Store wrapped keys beside the file.",
        free=True,
        group="Key service",
        rare=True,
    )
    data_key_length_bits: int = declare(KEY_BITS, default=128, absent=_RARE, free=True)
    kek_length_bits: int = declare(KEY_BITS, default=128, absent=_RARE, free=True)
    cache_lifetime_seconds: float = declare(_LIFETIME, default=600.0, absent=_RARE, free=True)
    signed_by: Sequence[str] = declare(NAMES, default=())
    seal_at_least: int | None = declare(COUNT, default=None, needs=("signed_by",), free=True)
    subjects: str | None = declare(NAME, default=None, absent=_IN_POLICY)
    subject_key: str | None = declare(
        NAME, default=None, absent=_IN_POLICY, needs=("subject_columns",), free=True
    )
    subject_columns: Sequence[str] = declare(
        NAMES, default=(), absent=_IN_POLICY, needs=("subject_key", "subjects"), free=True
    )
    subject_dataset: str | None = declare(
        NAME, default=None, absent=_IN_POLICY, needs=("subject_columns",), free=True
    )


_ALGORITHMS = Kind(
    f"one or more of {', '.join(ALGORITHMS)}",
    {"type": "array", "items": one_of(*ALGORITHMS).schema, "minItems": 1},
)
_FLAG_OR_NAMES = Kind(
    "true, false, or names of columns", {"anyOf": [FLAG.schema, {**NAMES.schema, "minItems": 1}]}
)
_BY_POLICY = "the policy sets its members"
_NOT_OF_TABLES = {NOT_ON_SPARK: "the maker of a table chooses its options, not its reader"}
_KEYS_OF_COLUMNS = table_of(
    _REFERENCE, 'a table of columns and references, such as {"ssn": "env:SSN_KEY"}'
)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)  # subclasses have their own
class KeyReferences:
    """The settings of `Settings`, which Spark's data source and the command line have, too.

    Args:
        policy: Policy, or its path: how files are encrypted, and the AAD prefix and algorithm for
            reading.
        kms: URI of a key service, as for `open_kms`; name the passphrase of a keyring by
            `?passphrase=env:NAME` or `?passphrase=file:PATH`. None for the key service of the
            policy.
        footer_key: Reference to the footer key, instead of a key service: `file:PATH`, `env:NAME`
            or `fd:N`. A file or descriptor contains raw bytes, hex or base64; a variable contains
            hex or base64.
        column_keys: Mapping of column names to references to their keys.
        plaintext_columns: Columns to leave unencrypted, with `footer_key`.
        aad_prefix: AAD prefix of every file, with `{path}` for its path in the table or `{name}`
            for its name; None for the policy's. With keys by reference, text supports neither.
        root: Folder of the dataset that `{path}` is relative to. None for the folder that is read
            or converted.
        accept_algorithms: Algorithms to accept: `AES_GCM_V1`, `AES_GCM_CTR_V1` or both; None for
            the policy's, else for AES_GCM_V1.
        require_encrypted: Whether columns must be encrypted: true, false, or the names of those
            that must be.
        master_key_ids: Ids of master keys that may protect the files that are read, besides those
            that the policy or the URI of `kms` names, for example during a rotation.
        passphrase: Reference to the passphrase of a keyring whose URI names none: `file:PATH`,
            `env:NAME`, `fd:N`, or `prompt` to ask on the terminal if the keyring needs one. The
            last two cannot be sent to other processes.
        encryption_options: Further arguments of `FileEncryptionProperties`, with `footer_key`:
            `plaintext_footer`, `encryption_algorithm`, `store_aad_prefix`, `data_page_v2_levels`,
            `footer_key_metadata` and `column_key_metadata`.
        shared_aad_prefix: Whether several files may have the same AAD prefix.
        on_missing_key: Columns without a key: `error`, `drop`, or `null` for nulls.
        on_erased: Files and columns that modcrypt.toml declares as erased: `skip` leaves them out,
            `raise` fails.
        check_footer_integrity: Whether to verify the signature of a plaintext footer.
        audit: Path of a file to which modcrypt appends each use of the key service's keys, as a
            line of JSON.
        recipients: Recipients of new files, beside a key service or without one.
        identities: References to identities, beside other keys or without any.
        identity_passphrase: Reference to the passphrase of identities, as `passphrase`.
        signing_key: Reference to the key with which new files are signed, or the URI of a key in
            Vault, AWS KMS or a PKCS#11 token.
        signing_passphrase: Reference to the passphrase of the signing key's file, as `passphrase`.
        signed_by: Keys of writers, one of whom must have signed each file that is read; empty for
            the policy's.
        seal_at_least: Number that the seal of the dataset must have at least, signed by one of
            these writers; None for the policy's, which may require no seal.
        subjects: Address of the vault with the keys of subjects, under which values of some columns
            are encrypted one by one; None for the policy's, which may have none.
    """

    policy: Any = declare(NAME, default=None)  # noqa: RUF009
    kms: str | None = declare(URI, default=None)
    footer_key: str | None = declare(_REFERENCE, default=None, option="--key")
    column_keys: Mapping[str, str] = declare(
        _KEYS_OF_COLUMNS, default_factory=dict, option="--column-key"
    )
    plaintext_columns: tuple[str, ...] = declare(
        NAMES, default=(), use="write", option="--plaintext-column"
    )
    aad_prefix: str | bytes | None = declare(TEXT, default=None)
    root: str | None = declare(NAME, default=None)
    accept_algorithms: tuple[str, ...] | None = declare(
        _ALGORITHMS, default=None, use="read", option="--accept-algorithm"
    )
    require_encrypted: bool | tuple[str, ...] = declare(
        _FLAG_OR_NAMES, default=True, use="read", absent={NO_OPTION: "--allow-plaintext"}
    )
    master_key_ids: tuple[str, ...] = declare(NAMES, default=(), use="read", option="--master-key")
    passphrase: str | None = declare(_REFERENCE, default=None)
    encryption_options: Mapping[str, Any] = declare(
        table_of(TEXT, "a table"),
        default_factory=dict,
        repr=False,
        use="write",
        absent={NOT_ON_SPARK: _BY_POLICY, NO_OPTION: "each has an option of its own"},
    )
    shared_aad_prefix: bool = declare(FLAG, default=False)
    on_missing_key: Literal["error", "drop", "null"] = declare(
        one_of("error", "drop", "null"), default="error", use="read", group="Missing keys"
    )
    on_erased: Literal["skip", "raise"] = declare(
        one_of("skip", "raise"), default="skip", use="read", group="Missing keys", rare=True
    )
    check_footer_integrity: bool = declare(
        FLAG,
        default=True,
        use="read",
        option="--no-check-footer",
        off="Trust a plaintext footer without verifying its signature.",
        absent=_NOT_OF_TABLES,
        group="Reading",
        rare=True,
    )
    audit: str | None = declare(NAME, default=None, absent=_NOT_OF_TABLES)
    recipients: tuple[Any, ...] = declare(NAMES, default=(), use="write", option="--to")
    identities: tuple[str, ...] = declare(
        NAMES, default=(), use="read", option="--identity", spark="identity"
    )
    identity_passphrase: str | None = declare(_REFERENCE, default=None, use="read")
    signing_key: str | None = declare(_REFERENCE, default=None, use="write", option="--sign")
    signing_passphrase: str | None = declare(
        _REFERENCE, default=None, use="write", option="--sign-passphrase"
    )
    signed_by: tuple[Any, ...] = declare(NAMES, default=(), use="read")
    seal_at_least: int | None = declare(COUNT, default=None, use="read")
    subjects: str | None = declare(
        NAME, default=None, absent={NO_OPTION: "a policy or declaration names it"}
    )


MAX_KEK_DAYS = 36500
"""Maximum lifetime of a table's KEK in days."""


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)  # subclasses have their own
class TablePolicySettings:
    """The settings of the key policy of an Iceberg table, which declarations of lakes have, too.

    Args:
        kek_per: Group of files that share a KEK: `table`, `partition`, `day` or `files`; Iceberg's
            Java reads `table` and `day` only.
        files: Number of files that share a KEK if `kek_per` is `files`.
        wrapping: Way of wrapping: `double`: KEKs encrypt key metadata, and the master key wraps
            KEKs; or `single`: the master key wraps each data key itself, with one call of the key
            service for each. Then `kek_per` is `table`, for manifest lists alone, or `files`, for
            data and delete files too.
        kek_lifetime_days: Age in days at which a KEK is replaced for new files; 730 as in Java.
        store: Place of the KEKs: the `table`'s metadata, or the `key-store` that the table was
            opened with.
    """

    kek_per: Literal["table", "partition", "day", "files"] = declare(
        one_of("table", "partition", "day", "files"),
        default="table",
        group="Keys of tables",
        free=True,
    )
    files: int = declare(
        number_from(1, 10**9 - 1),
        default=1000,
        option="--files-per-kek",
        group="Keys of tables",
        rare=True,
        free=True,
    )
    wrapping: Literal["double", "single"] = declare(
        one_of("double", "single"), default="double", group="Keys of tables", rare=True, free=True
    )
    kek_lifetime_days: int = declare(
        number_from(1, MAX_KEK_DAYS),
        default=730,
        option="--kek-lifetime",
        group="Keys of tables",
        free=True,
    )
    store: Literal["table", "key-store"] = declare(
        one_of("table", "key-store"),
        default="table",
        option="--keks-in",
        group="Place of KEKs",
        free=True,
    )


def list_table_policy_faults(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the faults of a table's key policy, by setting; missing ones have their defaults."""
    faults = list_faults(settings_of(TablePolicySettings).values(), values)
    if not faults and values.get("wrapping") == "single":
        if values.get("kek_per", "table") not in ("table", "files"):
            faults["wrapping"] = ["single wrapping uses no KEKs: kek_per must be table or files"]
        if values.get("store", "table") != "table":
            faults["store"] = ["single wrapping uses no KEKs that a key store could keep"]
    return faults

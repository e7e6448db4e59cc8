"""Our keys for Spark's own Parquet, `spark.read.parquet` and `df.write.parquet`, at JVM speed.

    native(spark, kms="file:/etc/lake.keyring?passphrase=file:/run/lake.pass")
    spark.read.parquet("people.enc")                                    # reads encrypted files
    frame.write.options(**native_options(policy)).parquet("more.enc")

parquet-java reads and writes key material (PKMT1) and calls a key service through a class in a jar
(`native_jar`). The configuration only holds references: the URI of the key service, which names the
place of a passphrase or token.

Spark's reader is as strict as modcrypt's own: `modcrypt.ModcryptCryptoFactory` refuses plaintext
files, and files that the policy does not permit.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from modcrypt.kms.expected_keys import id_set
from modcrypt.kms.keyring.keyring_uri import keyring_path
from modcrypt.kms.policy import Policy, find_service
from modcrypt.kms.references import parse_kms_uri
from modcrypt.kms.services.pkcs11_uri import parse_pkcs11_uri
from modcrypt.spark.jvm.native_jar import FACTORY, bring_jar

_WRITER_VERSION = "parquet.writer.version"

_ALGORITHM = "parquet.encryption.algorithm"
"""An option of another factory than ours, by which Comet decides whether it decrypts files itself.

Comet takes keys from our factory, but neither AAD prefixes nor its refusal of plaintext files. With
an algorithm that it does not know, it leaves reading to Spark.
"""

_QUERIES = {
    "file": frozenset({"passphrase"}),
    "hcvault": frozenset({"derived", "namespace", "tls", "token"}),
    "aws-kms": frozenset({"region"}),
    "gcp-kms": frozenset(),
    "azure-kms": frozenset({"algorithm"}),
    "pkcs11": frozenset({"module-path", "pin-source"}),
}


def native(
    spark: Any,
    *,
    kms: str | None = None,
    policy: Policy | str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    master_key_ids: Collection[str] | None = None,
    require_encrypted: bool = True,
) -> None:
    """Configure a session's own Parquet reader and writer to use our keys.

    From then on, the session reads encrypted files, and refuses plaintext files unless
    `require_encrypted` is False. It encrypts files only with a policy, given here for all writes or
    by `native_options` for one write.

    `native` compiles a jar and adds it to the driver and, at run time, to all executors, unless
    `spark.jars` contains a jar written by `spark_jar`. A session of Spark Connect can't add jars:
    start its server with the jar.

    Args:
        spark: Spark session; other sessions of the same Spark keep their own settings.
        kms: URI of a keyring (`file:`), Vault's transit engine (`hcvault:`), AWS KMS (`aws-kms:`),
            Google Cloud KMS (`gcp-kms:`), Azure Key Vault (`azure-kms:`) or a PKCS#11 token
            (`pkcs11:`), as for `open_kms`; None for the policy's. Each executor resolves its paths,
            also those of passphrase, token and PIN, and its variables in the environment of the
            JVM, and finds credentials there.
        policy: Policy by which the session encrypts all Parquet files that it writes, and which
            it requires of those that it reads; or the path of its file.
        root, master_key_ids, require_encrypted: Arguments of `native_options`.

    Raises:
        ValueError: The URI or the policy is invalid.
        OSError: The policy's file cannot be read.
        TypeError: `spark` is not a session.
    """
    options = native_options(
        policy, kms=kms, root=root, master_key_ids=master_key_ids,
        require_encrypted=require_encrypted,
    )  # fmt: skip
    bring_jar(spark)
    spark.conf.unset(_WRITER_VERSION)  # a session keeps earlier options
    for name, value in options.items():
        spark.conf.set(name, value)


def native_options(
    policy: Policy | str | os.PathLike[str] | None = None,
    *,
    kms: str | None = None,
    root: str | os.PathLike[str] | None = None,
    master_key_ids: Collection[str] | None = None,
    require_encrypted: bool = True,
) -> dict[str, str]:
    """Return the options of Spark's own Parquet, for a read, a write, or a configuration.

    Pass them to `frame.write.options(**...)` and `spark.read.options(**...)`; or, with the prefix
    `spark.hadoop.`, put them in a cluster's configuration, and the jar of `spark_jar` in
    `spark.jars`.

    Args:
        policy: Policy that determines how files are encrypted, and that readers require, or the
            path of its file. None to read whatever the key service unwraps, under AES_GCM_V1 and
            any AAD prefix that a file stores.
        kms: URI of the key service; None for the policy's.
        root: Folder that `{path}` in the policy's AAD prefix is relative to: the dataset's folder.
        master_key_ids: Ids of further master keys that may protect the files that are read, as
            during a rotation. Without a policy, only these, and the one that the URI names, count.
        require_encrypted: Whether to refuse plaintext files when reading.

    Raises:
        ValueError: The URI or the policy is invalid.
        OSError: The policy's file cannot be read.
    """
    if policy is not None and not isinstance(policy, Policy):
        policy = Policy.load(policy)
    uri = find_service(kms, policy)
    options = {
        "parquet.crypto.factory.class": FACTORY,
        "modcrypt.kms.uri": _normalize_uri(uri),
        "modcrypt.kms.aad": "" if policy is None else policy.kms_aad or "",
    }
    options |= _policy_options(policy, uri, root, master_key_ids, require_encrypted)
    prefix = None if policy is None else policy.aad_prefix
    fits_comet = not require_encrypted and prefix is None
    options[_ALGORITHM] = "AES_GCM_V1" if fits_comet else "BY_MODCRYPT"
    if policy is not None and policy.data_page_v2_levels == "encrypted":
        options[_WRITER_VERSION] = "v1"  # parquet-java does not encrypt the levels of V2
    return options


def native_sql(*arguments: Any, **options: Any) -> str:
    """Return the options as text for SQL, in parentheses: after OPTIONS or SERDEPROPERTIES.

    Never pass them as TBLPROPERTIES, of which Spark's Parquet gets none or only some.

    Args:
        arguments, options: Arguments of `native_options`.

    Raises:
        ValueError, OSError: As `native_options`.
    """
    named = native_options(*arguments, **options)
    return f"({', '.join(f'{_literal(name)} = {_literal(named[name])}' for name in named)})"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _policy_options(
    policy: Policy | None, kms: str, root: str | os.PathLike[str] | None,
    master_key_ids: Collection[str] | None, require_encrypted: bool,
) -> dict[str, str]:  # fmt: skip
    """Return the options that `ModcryptCryptoFactory` reads."""
    # Each call sets all, so that none of a session's remains in effect. They contain the policy
    # itself, as JSON: executors may lack its file, and the JVM has no reader of TOML. Without a
    # policy, a master key that the URI of the key service names is required.
    ids = None if master_key_ids is None else id_set(master_key_ids)
    named = _named_key(kms)
    if policy is None and named:
        ids = (ids or frozenset()) | {named}
    if root is not None and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", os.fspath(root)):
        root = os.path.abspath(root)
    return {
        "modcrypt.policy": "" if policy is None else _encode(_policy_members(policy)),
        "modcrypt.root": "" if root is None else os.fspath(root),
        "modcrypt.master.key.ids": "" if ids is None else _encode(sorted(ids)),
        "modcrypt.require.encrypted": "true" if require_encrypted else "false",
    }


def _named_key(kms: str) -> str | None:
    """Return the master key that the URI of a key service names: its client's `default_key`."""
    scheme, _, rest = kms.partition(":")
    rest, _, fragment = rest.partition("#")
    location = rest.partition("?")[0].removeprefix("//")
    if scheme == "pkcs11":
        return parse_pkcs11_uri(kms).object
    if scheme == "gcp-kms":
        return location if "/cryptoKeys/" in location else None
    if scheme in ("hcvault", "azure-kms"):
        before, _, name = location.rpartition("/keys/")
        return name if before else None
    return (location if scheme == "aws-kms" else urllib.parse.unquote(fragment)) or None


def _policy_members(policy: Policy) -> dict[str, Any]:
    """Return the members that the JVM needs; those of the key service are separate options.

    Raise ValueError if the policy requires signatures, which the JVM cannot check.
    """
    if policy.signed_by:
        raise ValueError(
            "the policy requires signatures (signed_by), which Spark's own Parquet cannot check; "
            "read with the data source modcrypt"
        )
    if policy.subject_columns:
        raise ValueError(
            "the policy has subject_columns, whose values Spark's own Parquet cannot encrypt; use "
            "the data source modcrypt"
        )
    of_subjects = {"subjects", "subject_key", "subject_columns", "subject_dataset"}
    other = {"kms", "kms_aad", "signed_by", "seal_at_least"} | of_subjects
    names = {member.name for member in fields(policy)} - other
    members = {name: getattr(policy, name) for name in sorted(names)}
    return {**members, "column_keys": dict(policy.column_keys)}


def _encode(value: Any) -> str:
    return json.dumps(value).replace("$", "\\u0024")  # Hadoop substitutes ${...}


def _normalize_uri(kms: str) -> str:
    """Return a URI that has the same meaning in every process on this machine."""
    scheme = kms.partition(":")[0].lower()
    if scheme not in _QUERIES:
        raise ValueError(
            f"Spark's own Parquet supports key services at {': '.join(_QUERIES)}: URIs; for others "
            'use the data source: spark.read.format("modcrypt")'
        )
    rest = kms.partition(":")[2]
    if scheme == "pkcs11" and parse_pkcs11_uri(f"pkcs11:{rest}").id is not None:
        raise ValueError(
            "pkcs11: remove id=: in the JVM, only labels identify keys, and each must be unique"
        )
    parts = parse_kms_uri(f"{scheme}:{rest}", _QUERIES[scheme])
    location = parts.location
    if parts.fragment and scheme not in ("file", "hcvault"):
        raise ValueError(f"{scheme}: remove the fragment (#...) from the URI")
    if scheme == "file":
        location = urllib.parse.quote(os.path.abspath(keyring_path(f"file:{location}")))
    query = "&".join(f"{name}={_quote(name, value)}" for name, value in parts.query.items())
    uri = f"{scheme}:{location}{'?' if query else ''}{query}"
    if not uri.isascii() or "${" in uri:  # Hadoop substitutes ${...}
        raise ValueError(
            f"{scheme}: URIs must be ASCII without ${{; percent-escape other characters"
        )
    return uri


def _quote(name: str, value: str) -> str:
    if name in ("passphrase", "token", "pin-source"):
        kind, _, where = value.partition(":")
        if kind not in ("env", "file") or not where:
            raise ValueError(f"{name}= must be env:NAME or file:PATH, never the secret itself")
        if kind == "file":
            value = f"file:{os.path.abspath(os.path.expanduser(where))}"
    return urllib.parse.quote(value, safe="/:")

"""Our keys for Spark's own Parquet, `spark.read.parquet` and `df.write.parquet`, at JVM speed.

    native(spark, kms="file:/etc/lake.keyring?passphrase=file:/run/lake.pass")
    spark.read.parquet("people.enc")                                    # reads encrypted files
    frame.write.options(**native_options(policy, schema=frame.schema)).parquet("more.enc")

parquet-java reads and writes key material (PKMT1) and calls a key service through a class in a jar
(`native_jar`). The configuration only holds references: the URI of the key service, which names the
place of a passphrase or token.

Spark's reader is less strict than modcrypt: it also accepts plaintext files, files under
AES_GCM_CTR_V1, and any AAD prefix that a file states. If an attacker may have replaced files, read
them with the data source `modcrypt`.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modcrypt.kms.keyring.keyring import keyring_path
from modcrypt.kms.policy import Policy
from modcrypt.kms.uris import missing_extra, parse_kms_uri
from modcrypt.spark.jvm.native_jar import FACTORY, KMS_CLIENT, build_jar, compile_sources

try:
    from pyspark.sql import types
except ModuleNotFoundError as error:
    raise missing_extra("Spark", "spark") from error

_KEYS = "parquet.encryption"
_WRITING = ("uniform.key", "footer.key", "column.keys", "complete.columns", "plaintext.footer",
            "algorithm", "double.wrapping", "key.material.store.internally",
            "data.key.length.bits", "kek.length.bits")  # fmt: skip
WRITE_OPTIONS = (*(f"{_KEYS}.{name}" for name in _WRITING), "parquet.writer.version")
"""Options that a policy sets; `native` unsets them first, as a session keeps earlier options."""

_QUERIES = {
    "file": frozenset({"passphrase"}),
    "hcvault": frozenset({"derived", "namespace", "tls", "token"}),
}


def native(spark: Any, *, kms: str | None = None, policy: Policy | None = None) -> None:
    """Configure a session's own Parquet reader and writer to use our keys.

    From then on, the session reads encrypted and plaintext files. It encrypts files only with a
    policy, given here for all writes or by `native_options` for one write.

    `native` compiles a jar and adds it to the driver and, at run time, to all executors, unless
    `spark.jars` contains a jar written by `spark_jar`. A session of Spark Connect can't add jars:
    start its server with the jar.

    Args:
        spark: Spark session; other sessions of the same Spark keep their own settings.
        kms: URI of a keyring (`file:`) or of Vault's transit engine (`hcvault:`), as for
            `open_kms`; None for the policy's. Each executor resolves its paths, also those of
            passphrase and token, and its variables in the environment of the JVM.
        policy: Policy by which the session encrypts all Parquet files that it writes.

    Raises:
        ValueError: The URI is invalid, or Spark's writer does not support the policy.
        TypeError: `spark` is not a session.
    """
    options = native_options(policy, kms=kms)
    if not hasattr(spark, "newSession"):
        raise TypeError(f"spark must be a Spark session, not {type(spark).__name__}")
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        _bring_jar(spark.sparkContext)
    for name in WRITE_OPTIONS:
        spark.conf.unset(name)
    for name, value in options.items():
        spark.conf.set(name, value)


def native_options(
    policy: Policy | None = None,
    *,
    kms: str | None = None,
    schema: types.StructType | None = None,
) -> dict[str, str]:
    """Return the options of Spark's own Parquet, for a read, a write, or a configuration.

    Pass them to `frame.write.options(**...)` and `spark.read.options(**...)`; or, with the prefix
    `spark.hadoop.`, put them in a cluster's configuration, and the jar of `spark_jar` in
    `spark.jars`.

    Args:
        policy: Policy that determines how files are encrypted; None for a read.
        kms: URI of the key service; None for the policy's.
        schema: Schema of the frame. Needed if the policy names plaintext columns or groups of
            columns, as parquet-java needs each leaf.

    Raises:
        ValueError: The URI is invalid; or Spark's writer does not support the policy: it has an AAD
            prefix, names that the options can't express, or columns that the schema lacks.
    """
    uri = _normalize_uri(kms or (None if policy is None else policy.kms))
    aad = "" if policy is None else policy.kms_aad or ""
    options = {
        "parquet.crypto.factory.class": FACTORY,
        f"{_KEYS}.kms.client.class": KMS_CLIENT,
        "modcrypt.kms.uri": uri,
        "modcrypt.kms.aad": aad,
        # Set here, so that parquet-java does not take them from a file (CVE-2026-73334).
        f"{_KEYS}.kms.instance.id": "DEFAULT",
        f"{_KEYS}.kms.instance.url": "DEFAULT",
        # Not a secret: parquet-java caches clients and keys by this name, so it must differ for
        # each key service and AAD.
        f"{_KEYS}.key.access.token": f"modcrypt.cache.{_make_cache_name(uri, aad)}",
    }
    if policy is not None:
        options[f"{_KEYS}.cache.lifetime.seconds"] = str(int(policy.cache_lifetime_seconds))
        options |= _make_write_options(policy, schema)
    return options


def _make_cache_name(*parts: str) -> str:
    return "c" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


# --- the key service -----------------------------------------------------------------------------


def _normalize_uri(kms: str | None) -> str:
    """Return a URI that has the same meaning in every process on this machine."""
    if kms is None:
        raise ValueError("no key service is named; pass kms, or a policy that names one")
    scheme = kms.partition(":")[0].lower()
    if scheme not in _QUERIES:
        raise ValueError(
            "Spark's own Parquet supports a keyring (file:) or Vault (hcvault:) as key service; "
            'for others use the data source: spark.read.format("modcrypt")'
        )
    parts = parse_kms_uri(f"{scheme}:{kms.partition(':')[2]}", _QUERIES[scheme])
    location = parts.location
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
    if name in ("passphrase", "token"):
        kind, _, where = value.partition(":")
        if kind not in ("env", "file") or not where:
            raise ValueError(f"{name}= must be env:NAME or file:PATH, never the {name} itself")
        if kind == "file":
            value = f"file:{os.path.abspath(os.path.expanduser(where))}"
    return urllib.parse.quote(value, safe="/:")


# --- a policy as options of parquet-java ---------------------------------------------------------


def _make_write_options(policy: Policy, schema: types.StructType | None) -> dict[str, str]:
    if policy.aad_prefix is not None:
        raise ValueError(
            "Spark's own Parquet does not support an AAD prefix: remove it from the policy, or use "
            'the data source: df.write.format("modcrypt")'
        )
    keys = _group_leaves_by_key(policy, schema)
    uniform = not keys and not policy.plaintext_columns
    values = {
        "uniform.key": policy.footer_key if uniform else "",
        "footer.key": "" if uniform else policy.footer_key,
        "column.keys": ";".join(f"{key}:{','.join(names)}" for key, names in keys.items()),
        "complete.columns": _format_bool(bool(keys) and not policy.plaintext_columns),
        "plaintext.footer": _format_bool(policy.plaintext_footer),
        "algorithm": policy.encryption_algorithm,
        "double.wrapping": _format_bool(policy.double_wrapping),
        "key.material.store.internally": _format_bool(policy.internal_key_material),
        "data.key.length.bits": str(policy.data_key_length_bits),
        "kek.length.bits": str(policy.kek_length_bits),
    }
    _check_spelling([policy.footer_key], ids=True)
    options = {f"{_KEYS}.{name}": value for name, value in values.items()}
    if policy.data_page_v2_levels == "encrypted":  # parquet-java does not encrypt V2 levels
        options["parquet.writer.version"] = "v1"
    return options


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _group_leaves_by_key(policy: Policy, schema: types.StructType | None) -> dict[str, list[str]]:
    """Return the leaves by the master key that wraps their keys."""
    keys = {key: list(names) for key, names in policy.column_keys.items()}
    if schema is None:
        if policy.plaintext_columns:
            raise ValueError(
                "to leave columns in plaintext, parquet-java needs the names of all others: pass "
                "schema, that of the written frame, to native_options"
            )
    else:
        keys = _assign_leaves(policy, schema)
    _check_spelling(keys, ids=True)
    _check_spelling([name for names in keys.values() for name in names], ids=False)
    return keys


def _assign_leaves(policy: Policy, schema: types.StructType) -> dict[str, list[str]]:
    leaves = [".".join(path) for path in _list_leaves(schema)]
    if len(set(leaves)) < len(leaves):
        raise ValueError("two columns of the schema have the same dotted name; rename one")
    of_name = policy.key_of_column
    named = {*of_name, *policy.plaintext_columns}
    missing = sorted(n for n in named if not any(_is_in(leaf, n) for leaf in leaves))
    if missing:
        raise ValueError(f"the policy names columns that the schema lacks: {', '.join(missing)}")
    keys: dict[str, list[str]] = {}
    for leaf in leaves:
        # The longest name wins: a column of a group may have another key than the group.
        name = max((n for n in named if _is_in(leaf, n)), key=len, default=None)
        if name in policy.plaintext_columns:
            continue
        if name is not None:
            keys.setdefault(of_name[name], []).append(leaf)
        elif policy.plaintext_columns:  # otherwise complete.columns puts it under the footer key
            keys.setdefault(policy.footer_key, []).append(leaf)
    if policy.plaintext_columns and not keys:
        raise ValueError("the policy leaves all columns in plaintext; name columns to encrypt")
    return keys


def _is_in(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(f"{name}.")


def _list_leaves(kind: types.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the leaves that Spark writes for a type."""
    if isinstance(kind, types.UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _list_leaves(field.dataType, (*path, field.name))
    elif isinstance(kind, types.ArrayType):
        yield from _list_leaves(kind.elementType, (*path, "list", "element"))
    elif isinstance(kind, types.MapType):
        yield from _list_leaves(kind.keyType, (*path, "key_value", "key"))
        yield from _list_leaves(kind.valueType, (*path, "key_value", "value"))
    elif isinstance(kind, types.VariantType):
        yield from ((*path, "value"), (*path, "metadata"))
    else:
        yield path


_MARKS = re.compile(r"[,:;]|\$\{|^\s|\s$|^$")


def _check_spelling(names: Mapping[str, object] | list[str], *, ids: bool) -> None:
    wrong = sorted(name for name in names if _MARKS.search(name))
    if wrong:
        what = "ids of master keys" if ids else "names of columns"
        raise ValueError(
            f"parquet-java's options can't express {what} that contain , : ; or ${{ or start or "
            f"end with blanks: {', '.join(map(repr, wrong))}; use the data source: "
            'df.write.format("modcrypt")'
        )


# --- the jar -------------------------------------------------------------------------------------


def _bring_jar(context: Any) -> None:
    """Make the client's class available on the driver and executors, unless it already is."""
    jvm = context._jvm
    loader = context._jsc.hadoopConfiguration().getClassLoader()
    jar = _find_loaded_jar(jvm, loader)
    if jar is None or not jar.is_file():  # the jar was deleted with an earlier context
        is_loaded = jar is not None
        data = build_jar(compile_sources(jvm))
        jar = Path(context._temp_dir) / f"modcrypt-{hashlib.sha256(data).hexdigest()[:16]}.jar"
        jar.write_bytes(data)
        if not is_loaded:
            _load(jvm, context._jsc.hadoopConfiguration(), loader, jar)
    if jar.name not in {Path(url).name for url in _list_jars(context)}:
        context._jsc.addJar(jar.as_uri())


def _find_loaded_jar(jvm: Any, loader: Any) -> Path | None:
    """Return the jar from which the driver loaded the class; None if it has not loaded it."""
    resource = loader.getResource(f"{KMS_CLIENT.replace('.', '/')}.class")
    if resource is None:
        return None
    jar = resource.openConnection().getJarFileURL()
    return Path(jvm.java.nio.file.Paths.get(jar.toURI()).toString())


def _load(jvm: Any, configuration: Any, loader: Any, jar: Path) -> None:
    url = jvm.java.net.URI(jar.as_uri()).toURL()
    if loader.getClass().getSimpleName() == "MutableURLClassLoader":
        loader.addURL(url)
    else:
        urls = jvm.java.lang.reflect.Array.newInstance(url.getClass(), 1)
        urls[0] = url
        configuration.setClassLoader(jvm.java.net.URLClassLoader(urls, loader))


def _list_jars(context: Any) -> list[str]:
    jars = context._jsc.sc().listJars()
    return [jars.apply(number) for number in range(jars.size())]

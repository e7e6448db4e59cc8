"""Spark's own Parquet on our keys: `spark.read.parquet` and `df.write.parquet`, at the JVM's speed.

    native(spark, kms="file:/etc/lake.keyring?passphrase=file:/run/lake.pass")
    spark.read.parquet("people.enc")                                    # reads what has our keys
    frame.write.options(**native_options(policy, schema=frame.schema)).parquet("more.enc")

parquet-java reads and writes key material (PKMT1) and asks a key service by a class, which comes
in a jar (`native_jar`). Configuration holds references alone: the URI of the key service, which
says where a passphrase or token is.

Spark's reader insists on less than modcrypt: it also takes plaintext files, files under
AES_GCM_CTR_V1, and any AAD prefix that a file says of itself. Where files may have been replaced,
read them by the data source `modcrypt`.
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
from modcrypt.spark.jvm.native_jar import FACTORY, KMS_CLIENT, compiled, jar_bytes

try:
    from pyspark.sql import types
except ModuleNotFoundError as error:
    raise missing_extra("Spark", "spark") from error

__all__ = ["native", "native_options"]

_KEYS = "parquet.encryption"
_WRITING = ("uniform.key", "footer.key", "column.keys", "complete.columns", "plaintext.footer",
            "algorithm", "double.wrapping", "key.material.store.internally",
            "data.key.length.bits", "kek.length.bits")  # fmt: skip
WRITE_OPTIONS = (*(f"{_KEYS}.{name}" for name in _WRITING), "parquet.writer.version")
"""What a policy sets, and one session keeps from the next policy."""

_QUERIES = {
    "file": frozenset({"passphrase"}),
    "hcvault": frozenset({"derived", "namespace", "tls", "token"}),
}


def native(spark: Any, *, kms: str | None = None, policy: Policy | None = None) -> None:
    """Have a session's own Parquet reader and writer use our keys.

    Encrypted and plaintext files are read from now on. Written files are encrypted only with a
    policy, here for all writes or by `native_options` for one.

    A jar is compiled and given to the driver and, at run time, to all executors; unless one that
    `spark_jar` wrote came by `spark.jars`. A session of Spark Connect can't bring one: its server
    is to be started with it.

    Args:
        spark: a session; others of the same Spark keep their own settings.
        kms: URI of a keyring (`file:`) or of Vault's transit engine (`hcvault:`), as of
            `open_kms`; None for the policy's. Its paths, of passphrase and token too, are looked
            up on each executor; variables in the environment of its JVM.
        policy: how all files are encrypted that the session writes as Parquet.

    Raises:
        ValueError: no such URI, or a policy that Spark's writer can't follow.
        TypeError: `spark` is no session.
    """
    options = native_options(policy, kms=kms)
    if not hasattr(spark, "newSession"):
        raise TypeError(f"native takes a Spark session, not {type(spark).__name__}")
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
    """Give the options of Spark's own Parquet, for a read, a write, or a configuration.

    For `frame.write.options(**...)` and `spark.read.options(**...)`; with `spark.hadoop.` before
    each name for a cluster's configuration, beside `spark.jars` with what `spark_jar` wrote.

    Args:
        policy: how files are to be encrypted; None for a read.
        kms: URI of the key service; None for the policy's.
        schema: of the frame. Needed where the policy names plaintext columns, or groups of
            columns: parquet-java wants each leaf.

    Raises:
        ValueError: no such URI; or what Spark's writer can't do: an AAD prefix, names that its
            text can't spell, columns that the schema lacks.
    """
    uri = _uri(kms or (None if policy is None else policy.kms))
    aad = "" if policy is None else policy.kms_aad or ""
    options = {
        "parquet.crypto.factory.class": FACTORY,
        f"{_KEYS}.kms.client.class": KMS_CLIENT,
        "modcrypt.kms.uri": uri,
        "modcrypt.kms.aad": aad,
        # Given here, they are not taken out of a file (CVE-2026-73334).
        f"{_KEYS}.kms.instance.id": "DEFAULT",
        f"{_KEYS}.kms.instance.url": "DEFAULT",
        # No secret: parquet-java keeps clients and keys by this name, from which others of
        # another service or AAD are thus kept apart.
        f"{_KEYS}.key.access.token": f"modcrypt.cache.{_name(uri, aad)}",
    }
    if policy is not None:
        options[f"{_KEYS}.cache.lifetime.seconds"] = str(int(policy.cache_lifetime_seconds))
        options |= _writing(policy, schema)
    return options


def _name(*parts: str) -> str:
    return "c" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


# --- the key service -----------------------------------------------------------------------------


def _uri(kms: str | None) -> str:
    """Give a URI that says the same in every process on this machine."""
    if kms is None:
        raise ValueError("there is no key service: give kms, or a policy that names one")
    scheme = kms.partition(":")[0].lower()
    if scheme not in _QUERIES:
        raise ValueError(
            "Spark's own Parquet takes a keyring (file:) or Vault (hcvault:) as key service; for "
            'others read and write by the data source: spark.read.format("modcrypt")'
        )
    parts = parse_kms_uri(f"{scheme}:{kms.partition(':')[2]}", _QUERIES[scheme])
    location = parts.location
    if scheme == "file":
        location = urllib.parse.quote(os.path.abspath(keyring_path(f"file:{location}")))
    query = "&".join(f"{name}={_quoted(name, value)}" for name, value in parts.query.items())
    uri = f"{scheme}:{location}{'?' if query else ''}{query}"
    if not uri.isascii() or "${" in uri:  # Hadoop would put something in its place
        raise ValueError(f"{scheme}: URIs are of ASCII letters, with others as percent-escapes")
    return uri


def _quoted(name: str, value: str) -> str:
    if name in ("passphrase", "token"):
        kind, _, where = value.partition(":")
        if kind not in ("env", "file") or not where:
            raise ValueError(f"{name}= takes env:NAME or file:PATH, never the {name} itself")
        if kind == "file":
            value = f"file:{os.path.abspath(os.path.expanduser(where))}"
    return urllib.parse.quote(value, safe="/:")


# --- a policy in parquet-java's words ------------------------------------------------------------


def _writing(policy: Policy, schema: types.StructType | None) -> dict[str, str]:
    if policy.aad_prefix is not None:
        raise ValueError(
            "Spark's own Parquet writes no AAD prefix: leave the policy's out, or write by the "
            'data source: df.write.format("modcrypt")'
        )
    keys = _leaves_by_key(policy, schema)
    uniform = not keys and not policy.plaintext_columns
    said = {
        "uniform.key": policy.footer_key if uniform else "",
        "footer.key": "" if uniform else policy.footer_key,
        "column.keys": ";".join(f"{key}:{','.join(names)}" for key, names in keys.items()),
        "complete.columns": _word(bool(keys) and not policy.plaintext_columns),
        "plaintext.footer": _word(policy.plaintext_footer),
        "algorithm": policy.encryption_algorithm,
        "double.wrapping": _word(policy.double_wrapping),
        "key.material.store.internally": _word(policy.internal_key_material),
        "data.key.length.bits": str(policy.data_key_length_bits),
        "kek.length.bits": str(policy.kek_length_bits),
    }
    _check_spelling([policy.footer_key], ids=True)
    options = {f"{_KEYS}.{name}": value for name, value in said.items()}
    if policy.data_page_v2_levels == "encrypted":  # parquet-java leaves those of V2 in the clear
        options["parquet.writer.version"] = "v1"
    return options


def _word(value: bool) -> str:
    return "true" if value else "false"


def _leaves_by_key(policy: Policy, schema: types.StructType | None) -> dict[str, list[str]]:
    """Give master keys and the leaves whose keys they wrap."""
    keys = {key: list(names) for key, names in policy.column_keys.items()}
    if schema is None:
        if policy.plaintext_columns:
            raise ValueError(
                "to leave columns in plaintext, parquet-java wants all others named: give schema, "
                "of the frame that is written, to native_options"
            )
    else:
        keys = _by_schema(policy, schema)
    _check_spelling(keys, ids=True)
    _check_spelling([name for names in keys.values() for name in names], ids=False)
    return keys


def _by_schema(policy: Policy, schema: types.StructType) -> dict[str, list[str]]:
    leaves = [".".join(path) for path in _leaves(schema)]
    if len(set(leaves)) < len(leaves):
        raise ValueError("the schema has columns whose names, joined by dots, are the same")
    of_name = policy.key_of_column
    named = {*of_name, *policy.plaintext_columns}
    missing = sorted(n for n in named if not any(_is_in(leaf, n) for leaf in leaves))
    if missing:
        raise ValueError(f"the policy names columns that the frame lacks: {', '.join(missing)}")
    keys: dict[str, list[str]] = {}
    for leaf in leaves:
        # The longest name counts: a column of a group may have another key than the group.
        name = max((n for n in named if _is_in(leaf, n)), key=len, default=None)
        if name in policy.plaintext_columns:
            continue
        if name is not None:
            keys.setdefault(of_name[name], []).append(leaf)
        elif policy.plaintext_columns:  # else complete.columns has it under the footer key
            keys.setdefault(policy.footer_key, []).append(leaf)
    if policy.plaintext_columns and not keys:
        raise ValueError("the policy leaves all columns in plaintext: there is nothing to encrypt")
    return keys


def _is_in(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(f"{name}.")


def _leaves(kind: types.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Give the paths of the leaves that Spark writes for a type."""
    if isinstance(kind, types.UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType, (*path, field.name))
    elif isinstance(kind, types.ArrayType):
        yield from _leaves(kind.elementType, (*path, "list", "element"))
    elif isinstance(kind, types.MapType):
        yield from _leaves(kind.keyType, (*path, "key_value", "key"))
        yield from _leaves(kind.valueType, (*path, "key_value", "value"))
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
            f"parquet-java's options can't spell {what} with , : ; or ${{ in them or blanks around "
            f"them: {', '.join(map(repr, wrong))}; write by the data source: "
            'df.write.format("modcrypt")'
        )


# --- the jar -------------------------------------------------------------------------------------


def _bring_jar(context: Any) -> None:
    """Have driver and executors load the client's class, which may be there already."""
    jvm = context._jvm
    loader = context._jsc.hadoopConfiguration().getClassLoader()
    jar = _loaded_from(jvm, loader)
    if jar is None or not jar.is_file():  # a context that has ended took it along
        found = jar is not None
        data = jar_bytes(compiled(jvm))
        jar = Path(context._temp_dir) / f"modcrypt-{hashlib.sha256(data).hexdigest()[:16]}.jar"
        jar.write_bytes(data)
        if not found:
            _load(jvm, context._jsc.hadoopConfiguration(), loader, jar)
    if jar.name not in {Path(one).name for one in _jars(context)}:
        context._jsc.addJar(jar.as_uri())


def _loaded_from(jvm: Any, loader: Any) -> Path | None:
    """Give the jar of which the driver has the class; None if it has none."""
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


def _jars(context: Any) -> list[str]:
    jars = context._jsc.sc().listJars()
    return [jars.apply(number) for number in range(jars.size())]

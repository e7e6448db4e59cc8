"""The readers of the tamper matrix, modcrypt's own: each takes a path and a `Reading`, gives rows.

What a reader has no option for is said in words (`lacks`). One runs in parquet-java's JVM, with
modcrypt's factory for keys and footers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt.jobs.dataset_verification import verify_dataset
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.spark.jvm.native_jar import build_jar, compile_sources
from modcrypt.spark.jvm.native_parquet import native_options
from tests.support.java.jvm import java_errors, pyspark_jars
from tests.support.java.key_tools_java import MemoryKms
from tests.support.java.parquet_java import ParquetJava, ParquetJavaError
from tests.support.keys import FOOTER_KEY
from tests.support.tamper.files import BOTH, MASTERS, POLICY, WRITER, Reading, Rows


@dataclass(frozen=True)
class Answer:
    """Result of a reader: rows, or how it ended otherwise."""

    kind: str  # "rows", "error", "crash", "named"
    rows: Rows | None = None
    text: str = ""


Read = Callable[[Path, Reading], Rows]


@dataclass(frozen=True)
class Reader:
    """One column of the matrix."""

    name: str
    version: str
    answer: Callable[[Path, Reading], Answer]
    lacks: Callable[[Reading], str | None]


# --- what readers lack ---------------------------------------------------------------------------

NO_SUCH_OPTION = "has no such option"
NO_FOLDERS = "reads one file at a time"
UNREADABLE = "does not read such a file, altered or not"


def _lacks_ours(reading: Reading, *, whole: bool = False) -> str | None:
    """Say what modcrypt has no option for; `whole` is of what takes whole files alone."""
    if reading.rows is not None:
        return NO_SUCH_OPTION
    return NO_FOLDERS if whole and reading.folder else None


def _lacks_native(reading: Reading) -> str | None:
    if reading.rows or reading.drop or reading.template or reading.signed:
        return NO_SUCH_OPTION
    return NO_FOLDERS if reading.folder else None


# --- modcrypt ------------------------------------------------------------------------------------


def properties(reading: Reading) -> mc.FileDecryptionProperties:
    """Return the decryption properties for modcrypt."""
    options: dict[str, Any] = {
        "accept_algorithms": BOTH if reading.ctr else ["AES_GCM_V1"],
        "aad_prefix": reading.aad_prefix,
        "on_missing_key": "drop" if reading.drop else "error",
        "require_encrypted": reading.own_key or True,
        "signed_by": [WRITER.verifier] if reading.signed else (),
        "seal": mc.kms.RequiredSeal((WRITER.verifier,), at_least=2) if reading.sealed else None,
    }
    if reading.material:
        policy = POLICY if reading.policy else None
        return mc.KeyTools(MemoryKms.of(MASTERS)).decryption(policy, **options)
    return mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=dict(reading.column_keys), **options
    )


def filters(reading: Reading) -> list[tuple[str, str, int | str]] | None:
    """Spell a filter as pyarrow.parquet does."""
    return None if reading.where is None else [(reading.where[0], "==", reading.where[1])]


def _read_table(path: Path, reading: Reading) -> Rows:
    parts: dict[str, Any] = {
        "aad_prefix_template": reading.template,
        "expected_parts": reading.parts,
    }
    table = mc.read_table(
        path, properties(reading), columns=list(reading.columns) or None,
        filters=filters(reading), page_checksum_verification=reading.crc,
        **(parts if path.is_dir() else {}),
    )  # fmt: skip
    rows: Rows = table.to_pylist()
    return rows


def _decrypt_parquet(path: Path, reading: Reading) -> Rows:
    out = io.BytesIO()
    mc.decrypt_parquet(path, out, properties(reading))
    return _plain_rows(out, reading)


def _plain_rows(plain: io.BytesIO, reading: Reading) -> Rows:
    """Read decrypted data, by its indexes if a filter is given; the data may be noise."""
    anything = mc.FileDecryptionProperties(require_encrypted=False)
    columns = list(reading.columns) or None
    try:
        table = mc.read_table(plain, anything, columns=columns, filters=filters(reading))
    except (mc.ModcryptError, pa.ArrowException, OSError):
        return [{"noise": True}]
    rows: Rows = table.to_pylist()
    return rows


def _ours(read: Read, path: Path, reading: Reading) -> Answer:
    """Take a `ModcryptError` alone for a refusal: whatever else is raised is a fault."""
    try:
        return Answer("rows", read(path, reading))
    except mc.ModcryptError as error:
        return Answer("error", text=f"{type(error).__name__}: {error}")
    except Exception as error:
        if "CRC checksum verification failed" in str(error):  # by PyArrow, which was asked to
            return Answer("error", text=str(error))
        return Answer("crash", text=f"{type(error).__name__}: {error}")


def modcrypt_readers() -> list[Reader]:
    """Return modcrypt's ways to read, and to verify."""
    release = f"modcrypt {mc.__version__}"
    return [
        Reader("`read_table`", release, partial(_ours, _read_table), _lacks_ours),
        Reader(
            "`decrypt_parquet`", release, partial(_ours, _decrypt_parquet),
            partial(_lacks_ours, whole=True),
        ),
        Reader("`verify_parquet`", release, _verify, lambda _: None),
    ]  # fmt: skip


def _verify(path: Path, reading: Reading) -> Answer:
    """Verify, and if no fault is found, read: is what was verified what was written?"""
    keys = properties(reading)
    if path.is_dir():
        parts: dict[str, Any] = {
            "aad_prefix_template": reading.template,
            "expected_parts": reading.parts,
        }
        found: Any = verify_dataset(path, keys, **parts)
        files = list(found.files)
    else:
        found = verify_parquet(path, keys, expected_rows=reading.rows)
        files = [found]
    if not found.ok:
        words = {finding.word for file in (found, *files) for finding in file.findings}
        return Answer("error", text=", ".join(sorted(words)))
    reported = [f"{entry.what} {entry.path}" for file in files for entry in file.not_authenticated]
    rows = _ours(_read_table, path, reading).rows
    return Answer("named" if reported else "rows", rows, "; ".join(reported))


# --- parquet-java --------------------------------------------------------------------------------


class JavaFactory:
    """Our factory in parquet-java's JVM, with the reader's master keys in a keyring."""

    def __init__(self, java: ParquetJava) -> None:
        self._java = java
        self._folder = ExitStack()
        self._kms = ""
        self._loader: Any = None

    def __call__(self, path: Path, reading: Reading) -> Answer:
        """Return the answer of parquet-java with our factory to a file."""
        if self._loader is None:
            self._start(Path(self._folder.enter_context(TemporaryDirectory())))
        try:
            return Answer("rows", self._read(path, reading))
        except Exception as error:
            return Answer("error", text=f"{type(error).__name__}: {error}"[:500])

    def close(self) -> None:
        """Remove the keyring and the jar."""
        self._folder.close()

    def _start(self, folder: Path) -> None:
        ring = mc.Keyring.create(folder / "reader.keyring", plaintext=True)
        for name, value in MASTERS.items():
            ring.create_key(name, value=value)
        self._kms = f"file:{ring.path}"
        jvm, jar = self._java._jvm, folder / "modcrypt.jar"
        jar.write_bytes(build_jar(compile_sources(jvm)))
        kind = jvm.java.lang.Class.forName("java.net.URL")
        urls = jvm.java.lang.reflect.Array.newInstance(kind, 1)
        urls[0] = jvm.java.net.URI(jar.as_uri()).toURL()
        self._loader = jvm.java.net.URLClassLoader(urls)

    def _read(self, path: Path, reading: Reading) -> Rows:
        """Read as Spark does with `native`."""
        configuration = self._java._jvm.org.apache.hadoop.conf.Configuration()
        configuration.setClassLoader(self._loader)
        for name, value in native_options(_native_policy(reading), kms=self._kms).items():
            configuration.set(name, value)
        return _read_by_configuration(self._java, configuration, path, reading)


def _native_policy(reading: Reading) -> mc.Policy | None:
    """Return the policy that demands what a reading demands, and no more."""
    if reading.policy or reading.own_key or (reading.column_keys and not reading.material):
        return POLICY
    if reading.aad_prefix is None and not reading.ctr:
        return None
    return mc.Policy(
        footer_key="kf",
        aad_prefix=None if reading.aad_prefix is None else reading.aad_prefix.decode(),
        encryption_algorithm=BOTH[reading.ctr],
    )


def _read_by_configuration(
    java: ParquetJava, configuration: Any, path: Path, reading: Reading
) -> Rows:
    jvm, harness = java._jvm, java._harness
    place = jvm.org.apache.hadoop.fs.Path(str(path))
    where = reading.where
    with java_errors(ParquetJavaError):
        chosen = jvm.org.apache.parquet.filter2.compat.FilterCompat.NOOP
        chosen = chosen if where is None else harness.equal(*where)
        builder = jvm.org.apache.parquet.HadoopReadOptions.builder(configuration, place)
        builder.withRecordFilter(chosen).usePageChecksumVerification(reading.crc)
        hadoop = jvm.org.apache.parquet.hadoop
        source = hadoop.util.HadoopInputFile.fromPath(place, configuration)
        file = hadoop.ParquetFileReader.open(source, builder.build())
        try:
            full, schema = file.getFileMetaData().getSchema(), None
            for column in reading.columns:
                projected = harness.project(full, harness.path(column))
                schema = projected if schema is None else schema.union(projected)
            text = bytes(harness.rows(file, schema or full, chosen)).decode()
        finally:
            file.close()
    return [json.loads(line) for line in text.splitlines()]


def java_version() -> str:
    """Return the version of parquet-java that pyspark has in it."""
    (jar,) = pyspark_jars().glob("parquet-hadoop-[0-9]*.jar")
    return f"parquet-java {jar.stem.rpartition('-')[2]}"


def java_reader(java: ParquetJava) -> Reader:
    """Return parquet-java with our factory."""
    return Reader("parquet-java, modcrypt", java_version(), JavaFactory(java), _lacks_native)


def close(readers: Iterable[Reader]) -> None:
    """Stop what was started for readers."""
    for reader in readers:
        if isinstance(reader.answer, JavaFactory):
            reader.answer.close()

"""One key service, in Python and in Java, and parquet-java's key tools with it.

Both wrap as the key tools wrap locally: base64 of nonce, ciphertext and tag, with the master key's
id as AAD. Which version of a master key did it isn't stored, so unwrapping tries them all. In Java
the master keys are a static map, which py4j fills: no configuration ever holds one.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag

import modcrypt as mc
from tests.support.java.jvm import java_errors
from tests.support.java.parquet_java import ParquetJava, ParquetJavaError
from tests.support.pkmt1 import open_base64, seal_base64


@dataclass
class MemoryKms:
    """Master keys by id, the newest version last, and a log of what was asked for."""

    versions: dict[str, list[bytes]] = field(repr=False)
    calls: list[tuple[str, str]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of the keys that were unwrapped
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, masters: Mapping[str, bytes]) -> MemoryKms:
        """Return a service with one version of each master key."""
        return cls({name: [key] for name, key in masters.items()})

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap under the newest version."""
        assert not aad
        self._note("wrap", master_key_id)
        return seal_base64(self._find_versions(master_key_id)[-1], key, master_key_id.encode())

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap under whichever version does it."""
        assert not aad
        self._note("unwrap", master_key_id)
        for master in reversed(self._find_versions(master_key_id)):
            try:
                key = open_base64(master, wrapped, master_key_id.encode())
            except InvalidTag:
                continue
            self.lengths.append(len(key))
            return key
        raise mc.errors.KeyMaterialError(f"no version of {master_key_id} unwraps this")

    def rotate(self, *master_key_ids: str) -> None:
        """Add a version of each master key, or of all."""
        for name in master_key_ids or self.versions:
            self.versions[name].append(os.urandom(16))

    def destroy_old(self) -> None:
        """Leave only the newest versions: whatever older ones wrapped is lost."""
        for versions in self.versions.values():
            del versions[:-1]

    def without(self, *master_key_ids: str) -> MemoryKms:
        """Return a copy that lacks some master keys."""
        left = {name: v for name, v in self.versions.items() if name not in master_key_ids}
        return MemoryKms(left)

    def newest(self) -> dict[str, bytes]:
        """Return the newest version of every master key."""
        return {name: versions[-1] for name, versions in self.versions.items()}

    def count(self, operation: str) -> int:
        """Count the calls of one operation."""
        return sum(called == operation for called, _ in self.calls)

    def _note(self, operation: str, master_key_id: str) -> None:
        with self.lock:
            self.calls.append((operation, master_key_id))

    def _find_versions(self, master_key_id: str) -> list[bytes]:
        if master_key_id not in self.versions:
            raise mc.errors.KeyNotFoundError(f"there is no master key {master_key_id}")
        return self.versions[master_key_id]


# --- in Java -------------------------------------------------------------------------------------

JAVA_SOURCE = r"""
import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.crypto.keytools.*;

public class MemoryKms implements KmsClient {
  public static final Map MASTERS = new ConcurrentHashMap();
  public static final List CALLS = Collections.synchronizedList(new ArrayList());

  public static void reset() {
    MASTERS.clear();
    CALLS.clear();
    KeyToolkit.removeCacheEntriesForAllTokens();
  }

  public static void put(String id, byte[] key) {
    MASTERS.putIfAbsent(id, new CopyOnWriteArrayList());
    ((List) MASTERS.get(id)).add(key);
  }

  public static String calls() {
    String joined = String.join("\n", (List) CALLS);
    CALLS.clear();
    return joined;
  }

  // As clients of key services over HTTP do: to the address that they are given, with the token.
  public void initialize(Configuration conf, String instance, String url, String token) {
    CALLS.add("initialize " + instance + " " + url);
    if (!url.startsWith("http:")) return;
    try {
      URLConnection connection = new URL(url).openConnection();
      connection.setRequestProperty("X-Token", token);
      connection.getInputStream().close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  public String wrapKey(byte[] key, String id) {
    CALLS.add("wrap " + id);
    List versions = versions(id);
    byte[] newest = (byte[]) versions.get(versions.size() - 1);
    return KeyToolkit.encryptKeyLocally(key, newest, id.getBytes(StandardCharsets.UTF_8));
  }

  public byte[] unwrapKey(String wrapped, String id) {
    CALLS.add("unwrap " + id);
    List versions = versions(id);
    for (int n = versions.size() - 1; n >= 0; n--) {
      try {
        byte[] master = (byte[]) versions.get(n);
        return KeyToolkit.decryptKeyLocally(wrapped, master, id.getBytes(StandardCharsets.UTF_8));
      } catch (ParquetCryptoRuntimeException error) {
        // another version, then
      }
    }
    throw new ParquetCryptoRuntimeException("no version of " + id + " unwraps this");
  }

  private List versions(String id) {
    List versions = (List) MASTERS.get(id);
    if (versions == null) throw new ParquetCryptoRuntimeException("there is no master key " + id);
    return versions;
  }
}
"""

FACTORY = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"


class JavaKeyTools:
    """parquet-java's key tools in a JVM, and the key service in Java."""

    @staticmethod
    @functools.cache
    def of(java: ParquetJava) -> JavaKeyTools:
        """Return those of a JVM: of two classes with one name, Hadoop may find the wrong one."""
        return JavaKeyTools(java)

    def __init__(self, java: ParquetJava) -> None:
        self._jvm, self._harness = java._jvm, java._harness
        self._compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        self._compiler.cook(JAVA_SOURCE)
        self._loader = self._compiler.getClassLoader()
        self._kms = self._loader.loadClass("MemoryKms").newInstance()

    def jar(self, path: Path) -> Path:
        """Pack the key service's class, for a JVM that isn't this one."""
        with zipfile.ZipFile(path, "w") as jar:
            for name, code in self._compiler.getBytecodes().items():
                jar.writestr(f"{name.replace('.', '/')}.class", bytes(code))
        return path

    def knows(self, kms: MemoryKms) -> None:
        """Copy the master keys of the service in Python to that in Java, and drop all others."""
        self._kms.reset()
        for name, versions in kms.versions.items():
            for version in versions:
                self._kms.put(name, version)

    def calls(self) -> list[str]:
        """Take out what the service was asked for: "wrap kf", "initialize DEFAULT DEFAULT"."""
        text: str = self._kms.calls()
        return text.splitlines()

    def write(
        self, path: Path, schema: str, rows: Sequence[Mapping[str, Any]], *,
        page_version: str = "v1", **settings: Any,
    ) -> None:  # fmt: skip
        """Write a file; settings are those of `configuration`."""
        parquet = self._jvm.org.apache.parquet
        with java_errors(ParquetJavaError):
            versions = parquet.column.ParquetProperties.WriterVersion
            schema = parquet.schema.MessageTypeParser.parseMessageType(schema)
            builder = (
                parquet.hadoop.example.ExampleParquetWriter.builder(self._path(path))
                .withType(schema)
                .withConf(self.configuration(**settings))
                .withWriteMode(parquet.hadoop.ParquetFileWriter.Mode.OVERWRITE)
                .withWriterVersion(versions.fromString(page_version))
            )
            self._harness.write(builder.build(), schema, json.dumps(rows).encode())

    def read(self, path: Path, **settings: Any) -> list[dict[str, Any]]:
        """Read the rows of a file."""
        hadoop, path = self._jvm.org.apache.parquet.hadoop, self._path(path)
        with java_errors(ParquetJavaError):
            configuration = self.configuration(**settings)
            source = hadoop.util.HadoopInputFile.fromPath(path, configuration)
            options = self._jvm.org.apache.parquet.HadoopReadOptions.builder(configuration, path)
            reader = hadoop.ParquetFileReader.open(source, options.build())
            try:
                schema = reader.getFileMetaData().getSchema()
                every = self._jvm.org.apache.parquet.filter2.compat.FilterCompat.NOOP
                text = bytes(self._harness.rows(reader, schema, every)).decode()
            finally:
                reader.close()
        return [json.loads(line) for line in text.splitlines()]

    def rotate(self, folder: Path, **settings: Any) -> None:
        """Rotate the master keys of all files in a folder."""
        settings = {"key_material_store_internally": False, **settings}
        keytools = self._jvm.org.apache.parquet.crypto.keytools
        with java_errors(ParquetJavaError):
            keytools.KeyToolkit.rotateMasterKeys(str(folder), self.configuration(**settings))

    def configuration(self, **settings: Any) -> Any:
        """Return Hadoop's configuration; `footer_key` is `parquet.encryption.footer.key`."""
        made = self._jvm.org.apache.hadoop.conf.Configuration()
        made.setClassLoader(self._loader)
        for name, value in {**properties(), **format_settings(settings)}.items():
            made.set(name, value)
        return made

    def _path(self, path: Path) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(str(path))


def properties() -> dict[str, str]:
    """Return the properties that lead the key tools to the service."""
    return {
        "parquet.crypto.factory.class": FACTORY,
        "parquet.encryption.kms.client.class": "MemoryKms",
    }


def format_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Spell settings as the key tools do; those without a value are left out."""
    return {
        f"parquet.encryption.{name.replace('_', '.')}": str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in settings.items()
        if value is not None
    }

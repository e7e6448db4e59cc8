"""Drive Apache Iceberg's own Java from tests: AGS1 streams, key metadata, Avro files in them.

A JVM that py4j starts has the jars of the PyPI package ``pyspark`` and a few of Iceberg's on its
class path. Those come from Maven Central through the Ivy that pyspark carries, once: they are
kept in the user's cache folder, and their SHA-256 is checked each time. The environment variable
MODCRYPT_ICEBERG_JARS may name a folder that has them, in this version or a later one; they are
then taken as they are.

What py4j cannot reach by itself, or what would take too long over its socket, is in a small
class that Janino (also among pyspark's jars) compiles when the JVM has started.

Bytes cross that socket in base64: a few MiB are quick, and for timing nothing crosses it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.java import jvm


class Jar(NamedTuple):
    """A file in Maven Central."""

    organisation: str
    name: str
    version: str
    sha256: str


VERSION = "1.12.0"
JARS = (
    Jar("org.apache.iceberg", "iceberg-api", VERSION,
        "d476a6989edfe3882a47ce0eaa3e53df4d589ef5e7bd0a16ff113ae570bca8b6"),
    Jar("org.apache.iceberg", "iceberg-bundled-guava", VERSION,
        "8d27e319e3bc28f7f86e7fbd59f6758bfaa1f78d72d9f76aa93ad1f7cbd3ba34"),
    Jar("org.apache.iceberg", "iceberg-common", VERSION,
        "18a43330e3c5eb712a9bf88e8f70441971851400efb4646f0b6512ac40c5f357"),
    Jar("org.apache.iceberg", "iceberg-core", VERSION,
        "d3bbb331b7a907e134958d21ecccd91a736049e00768e07579ff60855bf28352"),
    Jar("com.github.ben-manes.caffeine", "caffeine", "3.2.4",
        "9d9d2cfd681fd9272ded3d27c9930db12f89f732345975aa113ebc223bbf1224"),
)  # fmt: skip
FETCH_SECONDS = 90  # it takes about 5 where Maven Central can be reached

JAVA_SOURCE = r"""
import java.lang.reflect.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.avro.generic.IndexedRecord;
import org.apache.iceberg.encryption.*;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.*;

public class Harness {
  private static final int MIB = 1 << 20;

  public InputFile open(byte[] data, byte[] key, byte[] aadPrefix, long length) {
    return new AesGcmInputFile(new InMemoryInputFile(data), key, aadPrefix, Long.valueOf(length));
  }

  /** The encryption manager of a table. Data files never take it to the KMS. */
  public StandardEncryptionManager manager(int keyLength) {
    KeyManagementClient kms = new KeyManagementClient() {
      public ByteBuffer wrapKey(ByteBuffer key, String id) { throw new IllegalStateException(); }
      public ByteBuffer unwrapKey(ByteBuffer key, String id) { throw new IllegalStateException(); }
      public void initialize(Map properties) {}
      public void close() {}
    };
    return new StandardEncryptionManager(new ArrayList(), "a master key", keyLength, kms);
  }

  // StandardKeyMetadata is private to its package.

  public NativeEncryptionKeyMetadata keyMetadata(byte[] key, byte[] aadPrefix) throws Exception {
    Constructor empty = standard().getDeclaredConstructor(new Class[0]);
    empty.setAccessible(true);
    IndexedRecord made = (IndexedRecord) empty.newInstance(new Object[0]);
    made.put(0, ByteBuffer.wrap(key));
    if (aadPrefix != null) made.put(1, ByteBuffer.wrap(aadPrefix));
    return (NativeEncryptionKeyMetadata) made;
  }

  public NativeEncryptionKeyMetadata keyMetadata(byte[] encoded) throws Throwable {
    Method parse = standard().getDeclaredMethod("parse", new Class[] {ByteBuffer.class});
    parse.setAccessible(true);
    try {
      return (NativeEncryptionKeyMetadata)
          parse.invoke(null, new Object[] {ByteBuffer.wrap(encoded)});
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private static Class standard() throws Exception {
    return Class.forName("org.apache.iceberg.encryption.StandardKeyMetadata");
  }

  // Timing: one plaintext and one file in memory, both reused in every round.

  private static final byte[] KEY = new byte[16];
  private static final byte[] AAD_PREFIX = new byte[16];
  private byte[] plain, sealed;
  private int written;

  public void prepare(int mib) throws Exception {
    plain = new byte[mib * MIB];
    new Random(1).nextBytes(plain);
    sealed = new byte[8 + mib * (MIB + 28)];
    encryptRound();
    SeekableInputStream in = stream();
    byte[] block = new byte[MIB];
    for (int n = 0; n < mib; n++) {
      IOUtil.readFully(in, block, 0, MIB);
      if (!Arrays.equals(block, 0, MIB, plain, n * MIB, (n + 1) * MIB))
        throw new IllegalStateException("block " + n + " is not what was written");
    }
    in.close();
  }

  public void forget() {
    plain = sealed = null;
  }

  public double encryptRound() throws Exception {
    long start = System.nanoTime();
    PositionOutputStream out = new AesGcmOutputFile(sink(), KEY, AAD_PREFIX).createOrOverwrite();
    out.write(plain, 0, plain.length);
    out.close();
    return seconds(start);
  }

  public double decryptRound() throws Exception {
    byte[] block = new byte[MIB];
    long start = System.nanoTime();
    SeekableInputStream in = stream();
    for (int left = plain.length; left > 0; left -= block.length)
      IOUtil.readFully(in, block, 0, block.length);
    in.close();
    return seconds(start);
  }

  public byte[] randomReads(int size, int warmUp, int reads) throws Exception {
    ByteBuffer result = ByteBuffer.allocate(8 * reads);
    Random random = new Random(2);
    byte[] target = new byte[size];
    SeekableInputStream in = stream();
    for (int n = -warmUp; n < reads; n++) {
      int offset = random.nextInt(plain.length - size);
      long start = System.nanoTime();
      in.seek((long) offset);
      IOUtil.readFully(in, target, 0, size);
      double taken = seconds(start);
      if (n >= 0) result.putDouble(taken);
    }
    in.close();
    return result.array();
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) / 1e9;
  }

  private SeekableInputStream stream() {
    return open(sealed, KEY, AAD_PREFIX, (long) sealed.length).newStream();
  }

  private OutputFile sink() {
    written = 0;
    final PositionOutputStream stream = new PositionOutputStream() {
      public long getPos() { return (long) written; }
      public void write(int b) { sealed[written++] = (byte) b; }
      public void write(byte[] from, int at, int size) {
        System.arraycopy(from, at, sealed, written, size);
        written += size;
      }
    };
    return new OutputFile() {
      public PositionOutputStream create() { return stream; }
      public PositionOutputStream createOrOverwrite() { return stream; }
      public String location() { return "memory"; }
      public InputFile toInputFile() { return new InMemoryInputFile(sealed); }
    };
  }
}
"""


#: The rows of `IcebergJava.write_avro` and `JavaFile.avro_rows`.
ROW_SCHEMA = """{"type": "struct", "schema-id": 0, "fields": [
    {"id": 1, "name": "number", "type": "int", "required": true},
    {"id": 2, "name": "text", "type": "string", "required": true}
]}"""


class JavaError(jvm.JavaError):
    """An exception of Iceberg's.

    ``released`` is the number of plaintext bytes that a reader had given out before.
    """

    def __init__(self, causes: Sequence[tuple[str, str]]) -> None:
        super().__init__(causes)
        self.released = 0


class KeyMetadata(NamedTuple):
    """The fields of Iceberg's standard key metadata."""

    key: bytes
    aad_prefix: bytes | None
    file_length: int | None


def why_unavailable() -> str | None:
    """Why Iceberg's Java cannot run here, as a reason to skip a test; None if it can."""
    if reason := jvm.why_unavailable():
        return reason
    try:
        iceberg_jars()
    except OSError as error:
        return f"there are no jars of Iceberg's: {error}"
    except subprocess.SubprocessError as error:
        return f"Ivy cannot fetch Iceberg's jars from Maven Central: {type(error).__name__}"
    return None


# --- the jars ------------------------------------------------------------------------------------


def iceberg_jars() -> list[Path]:
    """Return the jars, fetched if need be."""
    return fetch_jars(JARS, f"iceberg-{VERSION}")


_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modcrypt-tests"
"""In the user's cache folder, from which tests are kept while they run."""


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, which may not exist yet."""
    return _CACHE / name


def fetch_jars(jars: Sequence[Jar], name: str) -> list[Path]:
    """Return the jars of a folder of the cache, fetched if need be, or the user's."""
    if named := os.environ.get("MODCRYPT_ICEBERG_JARS"):
        return [_only(Path(named), f"{jar.name}-[0-9]*.jar") for jar in jars]
    folder = cache_folder(name)
    if not folder.exists():
        _fetch(folder, jars)
    return _verify_jars(folder, jars)


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} has {len(found)} files like {pattern}, not one")
    return found[0]


def _verify_jars(folder: Path, jars: Sequence[Jar]) -> list[Path]:
    paths = [folder / f"{jar.name}-{jar.version}.jar" for jar in jars]
    for path, jar in zip(paths, jars, strict=True):
        if hashlib.sha256(path.read_bytes()).hexdigest() != jar.sha256:
            raise ValueError(f"{path} is not the file that was published")
    return paths


def _fetch(folder: Path, jars: Sequence[Jar]) -> None:
    """Fetch into a temporary folder beside `folder`; the first of several at once is kept."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        wanted = Path(temporary) / "ivy.xml"
        wanted.write_text(_dependencies(jars))
        command = [
            *_ivy(), "-cache", f"{temporary}/cache", "-ivy", str(wanted), "-confs", "default",
            "-retrieve", f"{temporary}/jars/[artifact]-[revision].[ext]",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)
        fetched = Path(temporary, "jars")
        _verify_jars(fetched, jars)
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _dependencies(jars: Sequence[Jar]) -> str:
    """Ask Ivy for these jars alone: what else they need is among pyspark's."""
    wanted = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}"'
        ' transitive="false" conf="default->master"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="modcrypt" module="tests"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )


def _ivy() -> list[str]:
    return [java_program(), "-jar", *map(str, jvm.pyspark_jars().glob("ivy-*.jar"))]


def java_program() -> str:
    """Return the program that starts a JVM."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


# --- the JVM -------------------------------------------------------------------------------------


class JavaFile:
    """A decrypting input file of Iceberg's, as its readers of Avro and Puffin get it."""

    def __init__(self, packages: Any, file: Any) -> None:
        self._jvm, self._file = packages, file

    def size(self) -> int:
        """Return the plaintext length that the file reports to readers."""
        with jvm.java_errors(JavaError):
            return int(self._file.getLength())

    def read(self) -> bytes:
        """Return the whole plaintext; a `JavaError` states how much was released before it."""
        released = self._jvm.java.io.ByteArrayOutputStream()
        try:
            with self._stream() as stream:
                stream.transferTo(released)
        except JavaError as error:
            error.released = released.size()
            raise
        return bytes(released.toByteArray())

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return slices by offset and size, read in turn by seeking in one stream."""
        found = []
        with self._stream() as stream:
            for offset, size in ranges:
                stream.seek(offset)
                found.append(bytes(stream.readNBytes(size)))
        return found

    def avro_rows(self, start: int, length: int) -> list[tuple[int, str]]:
        """The rows of the Avro blocks that begin in a split, by Iceberg's own reader."""
        iceberg = self._jvm.org.apache.iceberg
        with jvm.java_errors(JavaError):
            schema = iceberg.SchemaParser.fromJson(ROW_SCHEMA)
            rows = iceberg.avro.Avro.read(self._file).project(schema).split(start, length).build()
            iterator, found = rows.iterator(), []
            while iterator.hasNext():
                row = iterator.next()
                found.append((int(row.get(0)), str(row.get(1))))
            rows.close()
            return found

    @contextmanager
    def _stream(self) -> Iterator[Any]:
        with jvm.java_errors(JavaError):
            stream = self._file.newStream()
            yield stream
            stream.close()


class IcebergJava:
    """A JVM with Iceberg in it, and a context manager that stops it at the end.

    Whatever fails inside Iceberg raises `JavaError`.
    """

    def __init__(self) -> None:
        # Heap is taken as it is needed: for timing 512 MiB, twice that and a bit.
        self._java = jvm.Jvm(JAVA_SOURCE, heap="3g", jars=iceberg_jars())
        self._jvm, self._harness = self._java.packages, self._java.harness
        self._iceberg = self._jvm.org.apache.iceberg

    def __enter__(self) -> IcebergJava:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the JVM."""
        self._java.close()

    def encrypt(self, plaintext: bytes, key: bytes, aad_prefix: bytes | None = None) -> bytes:
        """Write an AGS1 file."""
        with jvm.java_errors(JavaError):
            target = self._iceberg.inmemory.InMemoryOutputFile()
            self._write(
                self._iceberg.encryption.AesGcmOutputFile(target, key, aad_prefix), plaintext
            )
            return bytes(target.toByteArray())

    def encrypt_for_table(self, plaintext: bytes, key_length: int = 16) -> tuple[bytes, bytes]:
        """Write a file as a table does, with a fresh key: the file and its key metadata."""
        with jvm.java_errors(JavaError):
            target = self._iceberg.inmemory.InMemoryOutputFile()
            encrypted = self._harness.manager(key_length).encrypt(target)
            stored = self._write(encrypted.encryptingOutputFile(), plaintext)
            metadata = encrypted.keyMetadata().copyWithLength(stored).buffer()
            return bytes(target.toByteArray()), self._bytes(metadata)

    def open(
        self,
        encrypted: bytes,
        key: bytes,
        aad_prefix: bytes | None = None,
        length: int | None = None,
    ) -> JavaFile:
        """Open an AGS1 file; without a trusted ``length`` its real one serves as that."""
        with jvm.java_errors(JavaError):
            trusted = len(encrypted) if length is None else length
            return JavaFile(self._jvm, self._harness.open(encrypted, key, aad_prefix, trusted))

    def open_for_table(self, encrypted: bytes, key_metadata: bytes) -> JavaFile:
        """Open a file as a table does: key, AAD prefix and length from its key metadata."""
        with jvm.java_errors(JavaError):
            source = self._iceberg.inmemory.InMemoryInputFile(encrypted)
            wrapped = self._iceberg.encryption.EncryptedFiles.encryptedInput(source, key_metadata)
            return JavaFile(self._jvm, self._harness.manager(16).decrypt(wrapped))

    def decrypt(
        self,
        encrypted: bytes,
        key: bytes,
        aad_prefix: bytes | None = None,
        length: int | None = None,
    ) -> bytes:
        """Read all of an AGS1 file, as `open` opens it."""
        return self.open(encrypted, key, aad_prefix, length).read()

    def encode_key_metadata(self, metadata: KeyMetadata) -> bytes:
        """Encode standard key metadata."""
        key, aad_prefix, file_length = metadata
        with jvm.java_errors(JavaError):
            made = self._harness.keyMetadata(key, aad_prefix)
            if file_length is not None:
                made = made.copyWithLength(file_length)
            return self._bytes(made.buffer())

    def decode_key_metadata(self, encoded: bytes) -> KeyMetadata:
        """Decode standard key metadata."""
        with jvm.java_errors(JavaError):
            read = self._harness.keyMetadata(encoded)
            prefix = read.aadPrefix()
            return KeyMetadata(
                self._bytes(read.encryptionKey()),
                None if prefix is None else self._bytes(prefix),
                read.fileLength(),
            )

    def write_avro(self, rows: Iterable[tuple[int, str]]) -> bytes:
        """Write a plaintext Avro file: each row a number and a text, in a block of its own."""
        avro, generic = self._jvm.org.apache.avro, self._jvm.org.apache.avro.generic
        with jvm.java_errors(JavaError):
            schema = self._iceberg.SchemaParser.fromJson(ROW_SCHEMA)
            schema = self._iceberg.avro.AvroSchemaUtil.convert(schema, "row")
            out = self._jvm.java.io.ByteArrayOutputStream()
            writer = avro.file.DataFileWriter(generic.GenericDatumWriter(schema))
            writer.create(schema, out)
            for number, text in rows:
                record = generic.GenericRecordBuilder(schema).set("number", number)
                writer.append(record.set("text", text).build())
                writer.sync()
            writer.close()
            return bytes(out.toByteArray())

    def time_stream(self, mib: int, rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
        """Seconds of every round of encrypting and of decrypting ``mib`` MiB in memory.

        A round is a whole stream, AES-128 with an AAD prefix of 16 bytes, on one thread, from
        one array into another; both stay the same. Decrypted blocks go into one of 1 MiB.
        """
        with self._prepare_stream(mib):
            rounds_of = {
                "encrypt": self._harness.encryptRound,
                "decrypt": self._harness.decryptRound,
            }
            seconds = [
                {name: run() for name, run in rounds_of.items()} for _ in range(warm_up + rounds)
            ]
            return {name: [taken[name] for taken in seconds[warm_up:]] for name in rounds_of}

    def time_random_reads(
        self, mib: int, reads: int, size: int = 4096, warm_up: int = 2000
    ) -> list[float]:
        """Seconds of each of many reads at random places of one open stream in memory."""
        with self._prepare_stream(mib):
            taken = self._harness.randomReads(size, warm_up, reads)
        return list(struct.unpack(f">{reads}d", taken))

    @contextmanager
    def _prepare_stream(self, mib: int) -> Iterator[None]:
        with jvm.java_errors(JavaError):
            self._harness.prepare(mib)
            try:
                yield
            finally:
                self._harness.forget()

    def _bytes(self, buffer: Any) -> bytes:
        return bytes(self._iceberg.util.ByteBuffers.toByteArray(buffer))

    def _write(self, target: Any, plaintext: bytes) -> int:
        stream = target.createOrOverwrite()
        stream.write(plaintext)
        stream.close()
        return int(stream.storedLength())

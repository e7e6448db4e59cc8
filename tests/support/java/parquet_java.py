"""Drive the real parquet-java from tests: read, inspect and write with explicit keys.

The parquet-hadoop jar inside the PyPI package ``pyspark`` does the work. The loops over rows
run inside the JVM, in a small class.

Rows have one form for reading and writing, the physical one of the file::

    boolean                true, false         True, False
    int32, int64           JSON number         int
    float, double          JSON number         float (exact, with Infinity)
    NaN                    {"$nan": "<bits>"}  float
    binary that is STRING  JSON string         str (bytes if it is not UTF-8)
    any other binary       {"$hex": "<hex>"}   bytes (an INT96: 12 of them)
    absent                 null                None
    group, repeated field  object, array       dict, list

`ParquetJava.read_text` gives one line of JSON a row, every value exact to the bit, so
two files hold the same rows exactly when their texts are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from tests.support.java import jvm

if TYPE_CHECKING:
    from typing_extensions import Unpack

File: TypeAlias = "str | os.PathLike[str]"
#: The path of a column with dots, or as a tuple for names that have dots in them.
Column: TypeAlias = "str | tuple[str, ...]"

JAVA_SOURCE = r"""
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.*;
import com.fasterxml.jackson.core.json.*;
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.*;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.filter2.compat.FilterCompat;
import org.apache.parquet.filter2.predicate.*;
import org.apache.parquet.hadoop.*;
import org.apache.parquet.hadoop.metadata.*;
import org.apache.parquet.io.*;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.*;

public class Harness {
  private static final ObjectMapper JSON = JsonMapper.builder()
      .enable(new JsonReadFeature[] {JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS})
      .disable(new JsonWriteFeature[] {JsonWriteFeature.WRITE_NAN_AS_STRINGS}).build();

  public ColumnPath path(String parts) {
    return ColumnPath.get(parts.split("\0"));
  }

  public FilterCompat.Filter equal(String column, long value) {
    return FilterCompat.get(FilterApi.eq(FilterApi.longColumn(column), Long.valueOf(value)));
  }

  public FilterCompat.Filter equal(String column, String value) {
    Binary binary = Binary.fromString(value);
    return FilterCompat.get(FilterApi.eq(FilterApi.binaryColumn(column), binary));
  }

  public MessageType project(MessageType schema, ColumnPath column) {
    String[] path = column.toArray();
    Type type = schema.getType(path);
    for (int n = path.length - 1; n > 0; n--) {
      Type above = schema.getType((String[]) Arrays.copyOf(path, n));
      type = above.asGroupType().withNewFields(new Type[] {type});
    }
    return new MessageType(schema.getName(), new Type[] {type});
  }

  public byte[] rows(ParquetFileReader reader, MessageType schema, FilterCompat.Filter filter)
      throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    FileMetaData file = reader.getFileMetaData();
    MessageColumnIO io =
        new ColumnIOFactory(file.getCreatedBy()).getColumnIO(schema, file.getSchema());
    reader.setRequestedSchema(schema);
    PageReadStore pages;
    while ((pages = reader.readNextFilteredRowGroup()) != null) {
      RecordReader records = io.getRecordReader(pages, new GroupRecordConverter(schema), filter);
      for (long left = pages.getRowCount(); left > 0; left--) {
        Group row = (Group) records.read();
        if (row == null || records.shouldSkipCurrentRecord()) continue;
        out.write(JSON.writeValueAsBytes(group(row)));
        out.write('\n');
      }
    }
    return out.toByteArray();
  }

  private JsonNode group(Group g) {
    ObjectNode out = JSON.createObjectNode();
    for (int f = 0; f < g.getType().getFieldCount(); f++) {
      Type type = g.getType().getType(f);
      ArrayNode values = JSON.createArrayNode();
      for (int i = 0; i < g.getFieldRepetitionCount(f); i++)
        values.add(type.isPrimitive() ? value(g, f, i) : group((Group) g.getGroup(f, i)));
      boolean repeated = type.isRepetition(Type.Repetition.REPEATED);
      out.set(type.getName(), repeated ? values : values.get(0));
    }
    return out;
  }

  private JsonNode value(Group g, int f, int i) {
    PrimitiveType type = g.getType().getType(f).asPrimitiveType();
    byte[] raw;
    switch (type.getPrimitiveTypeName()) {
      case BOOLEAN: return BooleanNode.valueOf(g.getBoolean(f, i));
      case INT32: return IntNode.valueOf(g.getInteger(f, i));
      case INT64: return LongNode.valueOf(g.getLong(f, i));
      case FLOAT:
        float single = g.getFloat(f, i);
        if (single == single) return DoubleNode.valueOf((double) single);
        return tagged("$nan", HexFormat.of().toHexDigits(Float.floatToRawIntBits(single)));
      case DOUBLE:
        double real = g.getDouble(f, i);
        if (real == real) return DoubleNode.valueOf(real);
        return tagged("$nan", HexFormat.of().toHexDigits(Double.doubleToRawLongBits(real)));
      case INT96: raw = g.getInt96(f, i).getBytes(); break;
      default: raw = g.getBinary(f, i).getBytes();
    }
    String text = new String(raw, StandardCharsets.UTF_8);
    if (LogicalTypeAnnotation.stringType().equals(type.getLogicalTypeAnnotation())
        && Arrays.equals(raw, text.getBytes(StandardCharsets.UTF_8)))
      return TextNode.valueOf(text);
    return tagged("$hex", HexFormat.of().formatHex(raw));
  }

  private JsonNode tagged(String tag, String text) {
    return JSON.createObjectNode().put(tag, text);
  }

  public void write(ParquetWriter writer, MessageType schema, byte[] rows) throws Exception {
    for (Iterator it = JSON.readTree(rows).elements(); it.hasNext(); ) {
      Group row = new SimpleGroup(schema);
      fill(row, (JsonNode) it.next());
      writer.write(row);
    }
    writer.close();
  }

  private void fill(Group g, JsonNode row) {
    for (Iterator names = row.fieldNames(); names.hasNext(); ) {
      String name = (String) names.next();
      JsonNode v = row.get(name);
      int f = g.getType().getFieldIndex(name);
      if (v.isArray()) for (int i = 0; i < v.size(); i++) add(g, f, (JsonNode) v.get(i));
      else if (!v.isNull()) add(g, f, v);
    }
  }

  private void add(Group g, int f, JsonNode v) {
    Type type = g.getType().getType(f);
    if (!type.isPrimitive()) {
      fill(g.addGroup(f), v);
      return;
    }
    switch (type.asPrimitiveType().getPrimitiveTypeName()) {
      case BOOLEAN: g.add(f, v.booleanValue()); break;
      case INT32: g.add(f, v.intValue()); break;
      case INT64: g.add(f, v.longValue()); break;
      case FLOAT: g.add(f, (float) v.doubleValue()); break;
      case DOUBLE: g.add(f, v.doubleValue()); break;
      default: g.add(f, v.isTextual() ? Binary.fromString(v.textValue())
          : Binary.fromConstantByteArray(HexFormat.of().parseHex(v.get("$hex").textValue())));
    }
  }
}
"""


class ReadOptions(TypedDict, total=False):
    """Options of every reading method. Without keys and prefix nothing is decrypted."""

    footer_key: bytes | None
    column_keys: Mapping[Column, bytes]  #: by leaf column
    aad_prefix: bytes | None  #: supplied by the reader
    plaintext_ok: bool  #: accept a plaintext file although there are keys
    check_signature: bool  #: of a plaintext footer, on by default
    verify_crc: bool  #: check page checksums, where pages have them
    columns: Sequence[Column]  #: leaves or groups, in the order wanted; all by default
    where: tuple[str, int | str]  #: int64 or binary column, value: only rows that have it


class ParquetJavaError(jvm.JavaError):
    """An exception of parquet-java."""


def _set(builder: Any, **settings: Any) -> Any:
    """Call a builder's methods: with no value for True, not at all for None and False."""
    for method, value in settings.items():
        if value is not None and value is not False:
            getattr(builder, method)(*(() if value is True else (value,)))
    return builder


def _to_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    raise TypeError(f"not a value of a row: {value!r}")


def _from_json(group: dict[str, Any]) -> Any:
    if group.keys() == {"$hex"}:
        return bytes.fromhex(group["$hex"])
    if group.keys() == {"$nan"}:
        bits = bytes.fromhex(group["$nan"])
        return struct.unpack(">f" if len(bits) == 4 else ">d", bits)[0]
    return group


class ParquetJava:
    """A JVM with parquet-java in it, and a context manager that stops it at the end.

    Whatever fails inside parquet-java raises `ParquetJavaError`. With ``where`` it skips
    row groups and pages by statistics, dictionaries, bloom filters and page indexes, and
    seeks to the pages left; ``columns``, when given, must then include that column.
    """

    def __init__(self) -> None:
        self._java = jvm.Jvm(JAVA_SOURCE, heap="1g")
        self._jvm, self._harness = self._java.packages, self._java.harness
        self._parquet = self._jvm.org.apache.parquet
        self._thrift = self._parquet.format.converter.ParquetMetadataConverter

    def __enter__(self) -> ParquetJava:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the JVM."""
        self._java.close()

    def read_text(self, path: File, **options: Unpack[ReadOptions]) -> str:
        """The rows of a file, one line of JSON each, fields in schema order."""
        with self._open(path, options) as (reader, schema, row_filter):
            return bytes(self._harness.rows(reader, schema, row_filter)).decode()

    def read(self, path: File, **options: Unpack[ReadOptions]) -> list[dict[str, Any]]:
        """The rows of a file as Python values."""
        lines = self.read_text(path, **options).split("\n")
        return [json.loads(line, object_hook=_from_json) for line in lines[:-1]]

    def column_indexes(
        self, path: File, **options: Unpack[ReadOptions]
    ) -> dict[tuple[int, str], dict[str, str | None]]:
        """Statistics, column index, offset index and bloom filter of every column chunk.

        By row group and dotted path, as texts, None for what is absent. The texts hold no
        file offsets and no stored sizes, so a file and its encrypted copy must agree; that
        the offset index covers the pages of the chunk without a gap is checked here.
        """
        found = {}
        with self._open(path, options) as (reader, schema, _):
            for number, block in enumerate(reader.getRowGroups()):
                blooms = reader.getBloomFilterDataReader(number)
                for chunk in block.getColumns():
                    if schema.containsPath(chunk.getPath().toArray()):
                        found[number, str(chunk.getPath().toDotString())] = {
                            "statistics": self._statistics(chunk),
                            "column_index": self._column_index(reader, chunk),
                            "offset_index": self._offset_index(reader, chunk),
                            "bloom_filter": self._bloom_filter(blooms, chunk),
                        }
        return found

    def write(
        self,
        path: File,
        schema_text: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        footer_key: bytes | None = None,
        footer_key_metadata: bytes | None = None,
        column_keys: Mapping[Column, bytes] | None = None,
        column_key_metadata: Mapping[Column, bytes] | None = None,
        columns_with_footer_key: Iterable[Column] = (),
        complete_columns: bool = False,
        plaintext_footer: bool = False,
        algorithm: str = "AES_GCM_V1",
        aad_prefix: bytes | None = None,
        store_aad_prefix: bool = True,
        page_version: str = "v1",
        codec: str = "UNCOMPRESSED",
        page_size: int | None = None,
        page_row_count_limit: int | None = None,
        row_group_size: int | None = None,
        row_group_row_count_limit: int | None = None,
        dictionary: bool = True,
        bloom_columns: Iterable[Column] = (),
        page_checksums: bool = False,
    ) -> None:
        """Write a file; without ``footer_key`` a plaintext one.

        When no column is named, all are encrypted with the footer key; when some are, the
        others stay plaintext unless ``complete_columns``. Row limits are exact, sizes in
        bytes are not. A column with a bloom filter gets no dictionary, since parquet-java
        leaves the filter out of a chunk that has one.
        """
        rows = list(rows)
        parquet, hadoop = self._parquet, self._parquet.hadoop
        with jvm.java_errors(ParquetJavaError):
            schema = parquet.schema.MessageTypeParser.parseMessageType(schema_text)
            target = parquet.io.LocalOutputFile(self._file(path))
            builder = _set(
                hadoop.example.ExampleParquetWriter.builder(target).withType(schema),
                withConf=parquet.conf.PlainParquetConfiguration(),
                withWriteMode=hadoop.ParquetFileWriter.Mode.OVERWRITE,
                withCompressionCodec=hadoop.metadata.CompressionCodecName.valueOf(codec),
                withWriterVersion=parquet.column.ParquetProperties.WriterVersion.fromString(
                    page_version
                ),
                withMinRowCountForPageSizeCheck=1 if page_size or row_group_size else None,
                withPageSize=page_size,
                withPageRowCountLimit=page_row_count_limit,
                withRowGroupSize=row_group_size,
                withRowGroupRowCountLimit=row_group_row_count_limit,
                enablePageWriteChecksum=page_checksums,
                enableValidation=True,
            )
            builder.withDictionaryEncoding(dictionary)
            for column in bloom_columns:
                name = self._path(column).toDotString()
                builder.withDictionaryEncoding(name, False)
                builder.withBloomFilterEnabled(name, True)
                builder.withBloomFilterNDV(name, max(1, len(rows)))
            if footer_key is not None:
                columns = {**dict.fromkeys(columns_with_footer_key), **(column_keys or {})}
                properties = _set(
                    parquet.crypto.FileEncryptionProperties.builder(footer_key),
                    withFooterKeyMetadata=footer_key_metadata,
                    withAlgorithm=parquet.crypto.ParquetCipher.valueOf(algorithm),
                    withPlaintextFooter=plaintext_footer,
                    withAADPrefix=aad_prefix,
                    withoutAADPrefixStorage=not store_aad_prefix,
                    withEncryptedColumns=self._columns(
                        "Encryption", columns, column_key_metadata or {}
                    ),
                    withCompleteColumnEncryption=complete_columns,
                )
                builder.withEncryption(properties.build())
            content = json.dumps(rows, default=_to_json).encode()
            self._harness.write(builder.build(), schema, content)

    @contextmanager
    def _open(self, path: File, options: ReadOptions) -> Iterator[tuple[Any, Any, Any]]:
        """Open a file: its reader, the schema of the columns wanted, the filter of rows."""
        if unknown := options.keys() - ReadOptions.__annotations__.keys():
            raise TypeError(f"unknown options: {unknown}")
        parquet, where = self._parquet, options.get("where")
        no_filter = parquet.filter2.compat.FilterCompat.NOOP
        row_filter = self._harness.equal(*where) if where else no_filter
        footer_key, aad_prefix = options.get("footer_key"), options.get("aad_prefix")
        column_keys = options.get("column_keys") or {}
        with jvm.java_errors(ParquetJavaError):
            configuration = parquet.conf.PlainParquetConfiguration()
            settings = parquet.ParquetReadOptions.builder(configuration)
            settings.withRecordFilter(row_filter)
            settings.usePageChecksumVerification(options.get("verify_crc", False))
            if footer_key is not None or column_keys or aad_prefix is not None:
                properties = _set(
                    parquet.crypto.FileDecryptionProperties.builder(),
                    withFooterKey=footer_key,
                    withColumnKeys=self._columns("Decryption", column_keys, {}),
                    withAADPrefix=aad_prefix,
                    withPlaintextFilesAllowed=options.get("plaintext_ok"),
                    withoutFooterSignatureVerification=not options.get("check_signature", True),
                )
                settings.withDecryption(properties.build())
            source = parquet.io.LocalInputFile(self._file(path))
            reader = parquet.hadoop.ParquetFileReader.open(source, settings.build())
            try:
                full, schema = reader.getFileMetaData().getSchema(), None
                for column in options.get("columns") or ():
                    projection = self._harness.project(full, self._path(column))
                    schema = projection if schema is None else schema.union(projection)
                yield reader, schema or full, row_filter
            finally:
                reader.close()

    def _columns(
        self, kind: str, keys: Mapping[Column, bytes | None], metadata: Mapping[Column, bytes]
    ) -> Any:
        """The Java map of column properties, None when it would be empty."""
        columns = self._jvm.java.util.HashMap()
        for column, key in keys.items():
            path = self._path(column)
            builder = getattr(self._parquet.crypto, f"Column{kind}Properties").builder(path)
            _set(builder, withKey=key, withKeyMetaData=metadata.get(column))
            columns.put(path, builder.build())
        return columns if keys else None

    def _file(self, path: File) -> Any:
        return self._jvm.java.io.File(os.path.abspath(path)).toPath()

    def _path(self, column: Column) -> Any:
        parts = column.split(".") if isinstance(column, str) else column
        return self._harness.path("\0".join(parts))

    def _statistics(self, chunk: Any) -> str:
        text = f"values={chunk.getValueCount()} {chunk.getStatistics()}"
        sizes = chunk.getSizeStatistics()
        return text if sizes is None else f"{text} {self._thrift.toParquetSizeStatistics(sizes)}"

    def _column_index(self, reader: Any, chunk: Any) -> str | None:
        index = reader.readColumnIndex(chunk)
        if index is None:
            return None
        thrift = self._thrift.toParquetColumnIndex(chunk.getPrimitiveType(), index)
        return f"{thrift} {thrift.hashCode()}"  # the text alone cuts long values

    def _offset_index(self, reader: Any, chunk: Any) -> str | None:
        index = reader.readOffsetIndex(chunk)
        if index is None:
            return None
        pages, position = [], chunk.getFirstDataPageOffset()
        for n in range(index.getPageCount()):
            if index.getOffset(n) != position:
                return f"page {n} is at {index.getOffset(n)}, not at {position}"
            position += index.getCompressedPageSize(n)
            size = index.getUnencodedByteArrayDataBytes(n)
            pages.append(f"row {index.getFirstRowIndex(n)} {size}")
        end = chunk.getStartingPos() + chunk.getTotalSize()
        if position != end:
            return f"the pages end at {position}, the chunk at {end}"
        return ", ".join(pages)

    def _bloom_filter(self, blooms: Any, chunk: Any) -> str | None:
        bloom = blooms.readBloomFilter(chunk)
        if bloom is None:
            return None
        bits = self._jvm.java.io.ByteArrayOutputStream()
        bloom.writeTo(bits)
        digest = hashlib.sha256(bits.toByteArray()).hexdigest()
        return f"{bloom.getAlgorithm()} {bloom.getHashStrategy()} {bits.size()} {digest}"

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.GenericDeleteFilter;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.IdentityPartitionConverters;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.Peek;
import org.apache.iceberg.expressions.Evaluator;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.formats.ReadBuilder;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.PartitionUtil;

/** What a table has, as Iceberg reads it: rows, files, keys, snapshots. */
final class Reading {
  private Reading() {}

  /** Gives the rows of a snapshot, in no order; `generics` reads them by IcebergGenerics alone. */
  static List<Map<String, Object>> rows(Table table, JsonNode request) throws IOException {
    TableScan scan = scan(table, request);
    Schema projection = scan.schema();
    List<Map<String, Object>> found = new ArrayList<>();
    try (CloseableIterable<Record> rows =
        request.path("generics").asBoolean()
            ? generics(table, request)
            : CloseableIterable.concat(
                CloseableIterable.transform(
                    scan.planFiles(), task -> rows(table, task, projection)))) {
      rows.forEach(row -> found.add(Values.struct(projection.asStruct(), row)));
    }
    return found;
  }

  private static CloseableIterable<Record> generics(Table table, JsonNode request) {
    var reader = IcebergGenerics.read(table).where(filter(request));
    return request.hasNonNull("snapshot")
        ? reader.useSnapshot(request.get("snapshot").asLong()).build()
        : reader.build();
  }

  private static TableScan scan(Table table, JsonNode request) {
    TableScan scan = table.newScan();
    if (request.hasNonNull("snapshot")) {
      scan = scan.useSnapshot(request.get("snapshot").asLong());
    } else if (request.hasNonNull("ref")) {
      scan = scan.useRef(request.get("ref").asText());
    }
    if (request.hasNonNull("columns")) {
      List<String> columns = new ArrayList<>();
      request.get("columns").forEach(one -> columns.add(one.asText()));
      scan = scan.select(columns);
    }
    if (request.path("lineage").asBoolean()) {
      Schema wanted =
          new Schema(MetadataColumns.ROW_ID, MetadataColumns.LAST_UPDATED_SEQUENCE_NUMBER);
      scan = scan.project(TypeUtil.join(scan.schema(), wanted));
    }
    return scan.filter(filter(request));
  }

  private static Expression filter(JsonNode request) {
    JsonNode filter = request.path("filter");
    return ExpressionParser.fromJson(filter.isMissingNode() ? "true" : filter.toString());
  }

  /** Gives the rows of a data file that are not deleted, and that the filter is for. */
  static CloseableIterable<Record> rows(Table table, FileScanTask task, Schema projection) {
    var deletes = new WithKeys(table.io(), task, known(table), projection);
    Schema wanted = deletes.requiredSchema();
    ReadBuilder<Record, ?> reader =
        FormatModelRegistry.readBuilder(
            task.file().format(), Record.class, table.io().newInputFile(task.file()));
    CloseableIterable<Record> rows =
        reader
            .project(wanted)
            .idToConstant(
                PartitionUtil.constantsMap(task, IdentityPartitionConverters::convertConstant))
            .filter(task.residual())
            .build();
    var evaluator = new Evaluator(wanted.asStruct(), task.residual(), true);
    var wrapper = new InternalRecordWrapper(wanted.asStruct());
    return CloseableIterable.filter(
        deletes.filter(rows), row -> evaluator.eval(wrapper.wrap(row)));
  }

  /** Gives a table's columns, and those that it had: equality deletes may still go by them. */
  private static Schema known(Table table) {
    Map<Integer, Types.NestedField> known = new LinkedHashMap<>();
    table.schema().columns().forEach(one -> known.put(one.fieldId(), one));
    for (Schema schema : table.schemas().values()) {
      for (Types.NestedField one : schema.columns()) {
        String name = "dropped_" + one.fieldId();
        known.putIfAbsent(
            one.fieldId(), Types.NestedField.optional(one.fieldId(), name, one.type()));
      }
    }
    return new Schema(List.copyOf(known.values()));
  }

  /** Opens delete files with their keys; IcebergGenerics opens them by their location alone. */
  private static final class WithKeys extends GenericDeleteFilter {
    private final FileIO io;

    private WithKeys(FileIO io, FileScanTask task, Schema schema, Schema projection) {
      super(io, task, schema, projection);
      this.io = io;
    }

    @Override
    protected InputFile loadInputFile(DeleteFile file) {
      return io.newInputFile(file);
    }
  }

  // --- what is not rows -------------------------------------------------------------------------

  static Map<String, Object> files(BaseTable table, JsonNode request) throws IOException {
    Snapshot snapshot =
        request.hasNonNull("snapshot")
            ? table.snapshot(request.get("snapshot").asLong())
            : table.currentSnapshot();
    List<Map<String, Object>> manifests = new ArrayList<>();
    List<Map<String, Object>> files = new ArrayList<>();
    for (ManifestFile manifest : snapshot.allManifests(table.io())) {
      manifests.add(manifest(manifest));
      try (ManifestReader<?> reader = reader(table, manifest)) {
        reader.forEach(one -> files.add(file(table, (ContentFile<?>) one, manifest)));
      }
    }
    String id = snapshot.keyId();
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("manifest_list", snapshot.manifestListLocation());
    found.put("key", id == null ? null : Peek.ofList(table.operations().encryption(), id));
    found.put("manifests", manifests);
    found.put("files", files);
    return found;
  }

  private static ManifestReader<?> reader(BaseTable table, ManifestFile manifest) {
    return manifest.content() == ManifestContent.DATA
        ? ManifestFiles.read(manifest, table.io(), table.specs())
        : ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs());
  }

  private static Map<String, Object> manifest(ManifestFile one) {
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("path", one.path());
    found.put("content", one.content().id());
    found.put("length", one.length());
    found.put("spec", one.partitionSpecId());
    found.put("sequence_number", one.sequenceNumber());
    found.put("min_sequence_number", one.minSequenceNumber());
    found.put("snapshot_id", one.snapshotId());
    found.put("added", one.addedFilesCount());
    found.put("existing", one.existingFilesCount());
    found.put("deleted", one.deletedFilesCount());
    found.put("first_row_id", one.firstRowId());
    found.put("key", Peek.described(one.keyMetadata()));
    return found;
  }

  private static Map<String, Object> file(BaseTable table, ContentFile<?> one, ManifestFile in) {
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("path", one.location());
    found.put("content", one.content().id());
    found.put("format", one.format().name());
    found.put("partition", table.specs().get(one.specId()).partitionToPath(one.partition()));
    found.put("records", one.recordCount());
    found.put("size", one.fileSizeInBytes());
    found.put("sequence_number", one.dataSequenceNumber());
    found.put("file_sequence_number", one.fileSequenceNumber());
    found.put("first_row_id", one.firstRowId());
    found.put("manifest", in.path());
    found.put("key", Peek.described(one.keyMetadata()));
    if (one instanceof DeleteFile delete) {
      found.put("references", delete.referencedDataFile());
    }
    return found;
  }

  /** Gives the table's keys: KEKs are unwrapped, and what they seal is opened. */
  static List<Map<String, Object>> keys(FolderOperations operations) {
    TableMetadata metadata = operations.current();
    String master = metadata.properties().get("encryption.key-id");
    List<Map<String, Object>> found = new ArrayList<>();
    for (EncryptedKey key : metadata.encryptionKeys()) {
      Map<String, Object> one = new LinkedHashMap<>();
      one.put("id", key.keyId());
      one.put("by", key.encryptedById());
      one.put("properties", key.properties());
      if (key.encryptedById().equals(master)) {
        var kek = new Kms().unwrapKey(key.encryptedKeyMetadata(), master);
        one.put("sha256", Peek.sha256(kek));
        one.put("length", kek.remaining());
      } else {
        one.put("opened", Peek.ofList(operations.encryption(), key.keyId()));
      }
      found.add(one);
    }
    return found;
  }

  static Map<String, Object> snapshots(FolderOperations operations) {
    TableMetadata metadata = operations.current();
    List<Map<String, Object>> snapshots = new ArrayList<>();
    for (Snapshot one : metadata.snapshots()) {
      Map<String, Object> found = new LinkedHashMap<>();
      found.put("id", one.snapshotId());
      found.put("parent", one.parentId());
      found.put("sequence_number", one.sequenceNumber());
      found.put("operation", one.operation());
      found.put("summary", one.summary());
      found.put("key_id", one.keyId());
      found.put("first_row_id", one.firstRowId());
      found.put("added_rows", one.addedRows());
      snapshots.add(found);
    }
    Map<String, Object> refs = new LinkedHashMap<>();
    metadata.refs().forEach((name, ref) -> refs.put(name, ref.snapshotId()));
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("snapshots", snapshots);
    found.put("refs", refs);
    found.put("properties", metadata.properties());
    found.put("next_row_id", metadata.nextRowId());
    Snapshot current = metadata.currentSnapshot();
    found.put("current", current == null ? null : current.snapshotId());
    return found;
  }
}

import static org.apache.iceberg.expressions.Expressions.lit;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ExpireSnapshots;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.UpdateSchema;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteIndex;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;

/** Writes tables and commits to them, as an engine would by Iceberg's interfaces. */
final class Writing {
  private Writing() {}

  static Map<String, Object> create(JsonNode request) {
    String location = request.get("location").asText();
    Schema schema = SchemaParser.fromJson(request.get("schema").toString());
    PartitionSpec spec =
        request.hasNonNull("spec")
            ? PartitionSpecParser.fromJson(schema, request.get("spec").toString())
            : PartitionSpec.unpartitioned();
    Map<String, String> properties = new HashMap<>();
    for (Map.Entry<String, JsonNode> one : request.get("properties").properties()) {
      properties.put(one.getKey(), one.getValue().asText());
    }
    var folder = java.nio.file.Path.of(request.path("folder").asText(location), "metadata");
    FolderOperations operations = FolderOperations.of(request, folder);
    operations.commit(
        null,
        TableMetadata.newTableMetadata(
            schema, spec, SortOrder.unsorted(), location, properties));
    return committed(operations);
  }

  static Map<String, Object> commit(FolderOperations operations, BaseTable table, JsonNode request)
      throws IOException {
    for (JsonNode step : request.get("steps")) {
      String what = step.get("do").asText();
      switch (what) {
        case "append" -> append(table, step);
        case "overwrite" -> overwrite(table, step);
        case "delete" -> delete(table, step);
        case "delete-equal" -> deleteEqual(table, step);
        case "delete-files" -> deleteFiles(table, step);
        case "compact" -> compact(table);
        case "rewrite-manifests" -> table.rewriteManifests().clusterBy(file -> 0).commit();
        case "expire" -> expire(table, step);
        case "publish" ->
            table.manageSnapshots().cherrypick(snapshot(table, step)).commit();
        case "schema" -> evolve(table, step);
        case "spec" -> partition(table, step);
        case "branch" ->
            table.manageSnapshots().createBranch(name(step), snapshot(table, step)).commit();
        case "tag" -> table.manageSnapshots().createTag(name(step), snapshot(table, step)).commit();
        case "fast-forward" ->
            table.manageSnapshots().fastForwardBranch(name(step), step.get("to").asText()).commit();
        case "cherry-pick" -> table.manageSnapshots().cherrypick(snapshot(table, step)).commit();
        case "rollback" -> table.manageSnapshots().rollbackTo(snapshot(table, step)).commit();
        case "set" -> set(table, step);
        default -> throw new IllegalArgumentException("no step: " + what);
      }
    }
    return committed(operations);
  }

  private static Map<String, Object> committed(FolderOperations operations) {
    Snapshot current = operations.current().currentSnapshot();
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("metadata", operations.newest().toString());
    found.put("snapshot", current == null ? null : current.snapshotId());
    return found;
  }

  private static String name(JsonNode step) {
    return step.get("name").asText();
  }

  private static long snapshot(Table table, JsonNode step) {
    return step.path("snapshot").asLong(table.currentSnapshot().snapshotId());
  }

  private static void set(Table table, JsonNode step) {
    var update = table.updateProperties();
    step.get("properties").properties().forEach(e -> update.set(e.getKey(), e.getValue().asText()));
    update.commit();
  }

  /**
   * Drops snapshots, by default all but the last of each branch, and no files: Iceberg 1.12.0 opens
   * the manifest lists of snapshots that expire without a key, and fails after the commit.
   */
  private static void expire(Table table, JsonNode step) {
    ExpireSnapshots update = table.expireSnapshots();
    if (!step.path("older").isNull()) {
      update = update.expireOlderThan(step.path("older").asLong(Long.MAX_VALUE));
    }
    if (!step.path("last").isNull()) {
      update = update.retainLast(step.path("last").asInt(1));
    }
    update.cleanupLevel(ExpireSnapshots.CleanupLevel.NONE)
        .commit();
  }

  // --- rows -------------------------------------------------------------------------------------

  private static void append(Table table, JsonNode step) throws IOException {
    var append = table.newAppend();
    written(table, step).forEach(append::appendFile);
    if (step.hasNonNull("wap")) {
      append.stageOnly().set("wap.id", step.get("wap").asText());
    }
    to(append, step).commit();
  }

  private static void overwrite(Table table, JsonNode step) throws IOException {
    var overwrite = table.newOverwrite().overwriteByRowFilter(Expressions.alwaysTrue());
    written(table, step).forEach(overwrite::addFile);
    to(overwrite, step).commit();
  }

  private static <T extends SnapshotUpdate<T>> T to(T update, JsonNode step) {
    if (step.hasNonNull("stage")) {
      return update.stageOnly().set("wap.id", step.get("stage").asText());
    }
    return step.hasNonNull("branch") ? update.toBranch(step.get("branch").asText()) : update;
  }

  private static List<DataFile> written(Table table, JsonNode step) throws IOException {
    Schema schema = table.schema();
    List<Record> rows = new ArrayList<>();
    step.get("rows").forEach(row -> rows.add(Values.record(schema.asStruct(), row)));
    return written(table, rows, format(step));
  }

  private static FileFormat format(JsonNode step) {
    return FileFormat.fromString(step.path("format").asText("parquet"));
  }

  /** Writes a data file for each partition that rows fall into. */
  private static List<DataFile> written(Table table, List<Record> rows, FileFormat format)
      throws IOException {
    var key = new PartitionKey(table.spec(), table.schema());
    var internal = new InternalRecordWrapper(table.schema().asStruct());
    Map<PartitionKey, List<Record>> split = new LinkedHashMap<>();
    for (Record row : rows) {
      key.partition(internal.wrap(row));
      split.computeIfAbsent(key.copy(), one -> new ArrayList<>()).add(row);
    }
    List<DataFile> files = new ArrayList<>();
    for (Map.Entry<PartitionKey, List<Record>> one : split.entrySet()) {
      StructLike partition = table.spec().isPartitioned() ? one.getKey() : null;
      files.add(written(table, partition, one.getValue(), format));
    }
    return files;
  }

  private static DataFile written(
      Table table, StructLike partition, List<Record> rows, FileFormat format) throws IOException {
    EncryptedOutputFile output = output(table, format, table.spec(), partition);
    DataWriter<Record> writer =
        FormatModelRegistry.dataWriteBuilder(format, Record.class, output)
            .schema(table.schema())
            .setAll(table.properties())
            .spec(table.spec())
            .partition(partition)
            .keyMetadata(output.keyMetadata())
            .build();
    try (writer) {
      rows.forEach(writer::write);
    }
    return writer.toDataFile();
  }

  private static EncryptedOutputFile output(
      Table table, FileFormat format, PartitionSpec spec, StructLike partition) {
    OutputFileFactory files = factory(table, format);
    return partition == null ? files.newOutputFile() : files.newOutputFile(spec, partition);
  }

  private static OutputFileFactory factory(Table table, FileFormat format) {
    return OutputFileFactory.builderFor(table, 0, 0).format(format).build();
  }

  /** Puts all rows into new files. */
  private static void compact(Table table) throws IOException {
    var rewrite = table.newRewrite().validateFromSnapshot(table.currentSnapshot().snapshotId());
    List<Record> rows = new ArrayList<>();
    for (FileScanTask task : planned(table)) {
      rewrite.deleteFile(task.file());
      task.deletes().forEach(rewrite::deleteFile);
      try (CloseableIterable<Record> kept = Reading.rows(table, task, table.schema())) {
        kept.forEach(rows::add);
      }
    }
    written(table, rows, FileFormat.PARQUET).forEach(rewrite::addFile);
    rewrite.commit();
  }

  // --- deletes ----------------------------------------------------------------------------------

  /** Rows whose column has one of the values, by position: the files, and positions in them. */
  private static Map<FileScanTask, List<Long>> found(Table table, JsonNode step)
      throws IOException {
    String column = step.get("column").asText();
    Schema position = new Schema(MetadataColumns.ROW_POSITION);
    Schema wanted = TypeUtil.join(table.schema().select(column), position);
    Type type = table.schema().findType(column);
    Set<Object> values = new HashSet<>();
    step.get("values").forEach(one -> values.add(Values.fromJson(type, one)));
    Map<FileScanTask, List<Long>> found = new LinkedHashMap<>();
    for (FileScanTask task : planned(table)) {
      List<Long> positions = new ArrayList<>();
      try (CloseableIterable<Record> rows = Reading.rows(table, task, wanted)) {
        for (Record row : rows) {
          if (values.contains(row.getField(column))) {
            positions.add((Long) row.getField(MetadataColumns.ROW_POSITION.name()));
          }
        }
      }
      if (!positions.isEmpty()) {
        found.put(task, positions);
      }
    }
    return found;
  }

  private static List<FileScanTask> planned(Table table) throws IOException {
    List<FileScanTask> found = new ArrayList<>();
    try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
      tasks.forEach(found::add);
    }
    return found;
  }

  /** Deletes rows by deletion vectors or, in a table of version 2, by position delete files. */
  private static void delete(Table table, JsonNode step) throws IOException {
    var found = found(table, step);
    RowDelta delta =
        table
            .newRowDelta()
            .validateFromSnapshot(table.currentSnapshot().snapshotId())
            .validateDataFilesExist(
                found.keySet().stream().map(task -> task.file().location()).toList())
            .validateDeletedFiles();
    int version = ((HasTableOperations) table).operations().current().formatVersion();
    if (version >= 3) {
      DeleteWriteResult vectors = vectors(table, found, step.path("keyless").asBoolean());
      vectors.deleteFiles().forEach(delta::addDeletes);
      vectors.rewrittenDeleteFiles().forEach(delta::removeDeletes);
    } else {
      for (DeleteFile file : positions(table, found, format(step))) {
        delta.addDeletes(file);
      }
    }
    to(delta, step).commit();
  }

  /** Writes deletion vectors; `keyless` as Iceberg 1.11.0 did it, which forgot their keys. */
  @SuppressWarnings("deprecation")
  private static DeleteWriteResult vectors(
      Table table, Map<FileScanTask, List<Long>> found, boolean keyless) throws IOException {
    Map<String, PositionDeleteIndex> before = new HashMap<>();
    for (FileScanTask task : found.keySet()) {
      List<DeleteFile> positions =
          task.deletes().stream().filter(f -> f.content() == FileContent.POSITION_DELETES).toList();
      if (!positions.isEmpty()) {
        var loader = new BaseDeleteLoader(file -> table.io().newInputFile(file));
        String path = task.file().location();
        before.put(path, loader.loadPositionDeletes(positions, path));
      }
    }
    OutputFileFactory files = factory(table, FileFormat.PUFFIN);
    var writer =
        keyless
            ? new BaseDVFileWriter(() -> files.newOutputFile().encryptingOutputFile(), before::get)
            : new BaseDVFileWriter(files, before::get);
    try (writer) {
      found.forEach(
          (task, all) ->
              all.forEach(
                  one ->
                      writer.delete(
                          task.file().location(), one, task.spec(), task.file().partition())));
    }
    return writer.result();
  }

  private static List<DeleteFile> positions(
      Table table, Map<FileScanTask, List<Long>> found, FileFormat format) throws IOException {
    List<DeleteFile> files = new ArrayList<>();
    for (Map.Entry<FileScanTask, List<Long>> one : found.entrySet()) {
      DataFile data = one.getKey().file();
      PartitionSpec spec = table.specs().get(data.specId());
      StructLike partition = spec.isPartitioned() ? data.partition() : null;
      EncryptedOutputFile output = output(table, format, spec, partition);
      PositionDeleteWriter<Record> writer =
          FormatModelRegistry.<Record>positionDeleteWriteBuilder(format, output)
              .spec(spec)
              .partition(partition)
              .keyMetadata(output.keyMetadata())
              .build();
      try (writer) {
        PositionDelete<Record> delete = PositionDelete.create();
        one.getValue().forEach(at -> writer.write(delete.set(data.location(), at)));
      }
      files.add(writer.toDeleteFile());
    }
    return files;
  }

  /** Deletes rows by files of equality deletes and adds others in one commit, as Flink does. */
  private static void deleteEqual(Table table, JsonNode step) throws IOException {
    RowDelta delta = table.newRowDelta();
    for (JsonNode file : step.get("files")) {
      delta.addDeletes(equalityDeletes(table, file));
    }
    if (step.has("rows")) {
      written(table, step).forEach(delta::addRows);
    }
    to(delta, step).commit();
  }

  /**
   * Writes rows to a file of equality deletes by the columns `by`; `columns` are all that it keeps.
   * They are those of a `schema`, by its id. The file is of the partition of a `spec`, by its id,
   * that the row `in` falls into.
   */
  private static DeleteFile equalityDeletes(Table table, JsonNode file) throws IOException {
    Schema all = table.schemas().get(file.path("schema").asInt(table.schema().schemaId()));
    PartitionSpec spec = table.specs().get(file.path("spec").asInt(table.spec().specId()));
    Schema kept = all.select(texts(file.path(file.has("columns") ? "columns" : "by")));
    PartitionKey partition = null;
    if (spec.isPartitioned()) {
      partition = new PartitionKey(spec, table.schema());
      Record row = Values.record(table.schema().asStruct(), file.get("in"));
      partition.partition(new InternalRecordWrapper(table.schema().asStruct()).wrap(row));
    }
    EncryptedOutputFile output = output(table, format(file), spec, partition);
    EqualityDeleteWriter<Record> writer =
        FormatModelRegistry.equalityDeleteWriteBuilder(format(file), Record.class, output)
            .schema(kept)
            .equalityFieldIds(
                texts(file.get("by")).stream().mapToInt(n -> all.findField(n).fieldId()).toArray())
            .spec(spec)
            .partition(partition)
            .keyMetadata(output.keyMetadata())
            .build();
    try (writer) {
      file.get("rows").forEach(one -> writer.write(Values.record(kept.asStruct(), one)));
    }
    return writer.toDeleteFile();
  }

  private static List<String> texts(JsonNode names) {
    List<String> found = new ArrayList<>();
    names.forEach(one -> found.add(one.asText()));
    return found;
  }

  /** Deletes whole files, all of whose rows have a value. */
  private static void deleteFiles(Table table, JsonNode step) {
    String column = step.get("column").asText();
    Object value = Values.fromJson(table.schema().findType(column), step.get("value"));
    to(table.newDelete().deleteFromRowFilter(Expressions.equal(column, value)), step).commit();
  }

  // --- schema and partitions --------------------------------------------------------------------

  private static void evolve(Table table, JsonNode step) {
    UpdateSchema update = table.updateSchema();
    step.path("add").forEach(one -> add(update, one));
    step.path("rename")
        .forEach(one -> update.renameColumn(one.get(0).asText(), one.get(1).asText()));
    step.path("drop").forEach(one -> update.deleteColumn(one.asText()));
    step.path("promote")
        .forEach(
            one -> update.updateColumn(one.get(0).asText(), type(one.get(1)).asPrimitiveType()));
    step.path("first").forEach(one -> update.moveFirst(one.asText()));
    update.commit();
  }

  /** Adds a column: its name, dotted in a struct, its type, and perhaps its default. */
  private static void add(UpdateSchema update, JsonNode column) {
    String name = column.get(0).asText();
    Type type = type(column.get(1));
    int dot = name.lastIndexOf('.');
    if (dot > 0) {
      update.addColumn(name.substring(0, dot), name.substring(dot + 1), type);
    } else if (column.has(2)) {
      JsonNode value = column.get(2);
      Literal<?> told = value.isNumber() ? lit(value.asLong()) : lit(value.asText());
      update.addColumn(name, type, null, told.to(type));
    } else {
      update.addColumn(name, type);
    }
  }

  private static Type type(JsonNode name) {
    return Types.fromPrimitiveString(name.asText());
  }

  private static void partition(Table table, JsonNode step) {
    var update = table.updateSpec();
    step.path("add")
        .forEach(
            one -> {
              String name = one.get(0).asText();
              switch (one.get(1).asText()) {
                case "identity" -> update.addField(name);
                case "bucket" -> update.addField(Expressions.bucket(name, one.get(2).asInt()));
                case "day" -> update.addField(Expressions.day(name));
                default -> throw new IllegalArgumentException("no transform: " + one);
              }
            });
    step.path("remove").forEach(one -> update.removeField(one.asText()));
    update.commit();
  }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.*;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.hadoop.*;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.metadata.*;
import org.apache.parquet.hadoop.util.*;
import org.apache.parquet.io.InputFile;

/** The client of parquet-java: keys that are given, and its key tools. */
public class Client {
  static final String READ = "ctr encrypted-footer plaintext-footer column-keys aad-prefix aes-192 aes-256"
      + " v2-levels-clear page-checksums unchecked-footer page-indexes bloom-filters metadata external-keys";
  static final String WRITE = "ctr encrypted-footer plaintext-footer column-keys aad-prefix aes-192 aes-256"
      + " v2 page-indexes bloom-filters plaintext-columns footer-key-columns nested-column-keys key-metadata"
      + " rows-per-page external-keys";

  public static void main(String[] arguments) throws IOException {
    var formats = List.of("parquet", "pkmt1");
    var started = Messages.started("parquet-java", Version.VERSION_NUMBER, formats, READ, WRITE);
    Messages.serve(started, Client::read, Client::write);
  }

  static ParquetFileReader open(JsonNode message) throws IOException {
    Path path = new Path(message.get("path").asText());
    boolean wrapped = message.has("master_keys");
    Configuration conf = wrapped ? Keys.configuration(message) : new Configuration();
    var options = HadoopReadOptions.builder(conf, path).usePageChecksumVerification(true);
    if (!wrapped) options.withDecryption(Keys.decryption(message));
    return ParquetFileReader.open(HadoopInputFile.fromPath(path, conf), options.build());
  }

  static ObjectNode read(JsonNode message) throws IOException {
    try (ParquetFileReader reader = open(message)) {
      if (message.path("operation").asText().equals("metadata")) return metadata(reader);
      for (BlockMetaData block : reader.getRowGroups()) {
        BloomFilterReader blooms = reader.getBloomFilterDataReader(block);
        for (ColumnChunkMetaData chunk : block.getColumns()) {
          reader.readColumnIndex(chunk);
          reader.readOffsetIndex(chunk);
          blooms.readBloomFilter(chunk);
        }
      }
      return GroupRows.tagged(reader);
    }
  }

  static ObjectNode metadata(ParquetFileReader reader) {
    Set<String> columns = new TreeSet<>();
    for (BlockMetaData block : reader.getRowGroups())
      for (ColumnChunkMetaData chunk : block.getColumns())
        if (chunk.getValueCount() >= 0) columns.add(chunk.getPath().toDotString());
    return Messages.outcome("metadata").set("columns", Messages.JSON.valueToTree(columns));
  }

  static ObjectNode write(JsonNode message) throws IOException {
    JsonNode options = message.get("options");
    Path path = new Path(message.get("path").asText());
    boolean wrapped = message.has("master_keys");
    Configuration conf = wrapped ? Keys.configuration(message) : new Configuration();
    InputFile input = HadoopInputFile.fromPath(new Path(message.get("input").asText()), new Configuration());
    try (ParquetFileReader reader = ParquetFileReader.open(input)) {
      var schema = reader.getFileMetaData().getSchema();
      var builder = ExampleParquetWriter.builder(HadoopOutputFile.fromPath(path, conf)).withConf(conf).withType(schema);
      if (!wrapped) builder.withEncryption(Keys.encryption(message, schema));
      if (options.path("data_page_version").asInt() == 2) builder.withWriterVersion(WriterVersion.PARQUET_2_0);
      if (options.path("max_rows_per_page").isInt())
        builder.withPageRowCountLimit(options.get("max_rows_per_page").asInt()).withDictionaryEncoding(false)
            .withMinRowCountForPageSizeCheck(1);
      if (options.path("row_group_size").isInt())
        builder.withRowGroupRowCountLimit(options.get("row_group_size").asInt());
      for (JsonNode column : options.path("bloom_filter_columns"))
        builder.withDictionaryEncoding(column.asText(), false).withBloomFilterEnabled(column.asText(), true)
            .withBloomFilterNDV(column.asText(), Math.max(1, reader.getRecordCount()));
      try (ParquetWriter<Group> writer = builder.build()) {
        for (Group row : GroupRows.groups(reader)) writer.write(row);
      }
    }
    return Messages.outcome("written");
  }
}

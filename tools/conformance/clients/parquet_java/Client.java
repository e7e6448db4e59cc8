import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Path;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.*;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.conf.PlainParquetConfiguration;
import org.apache.parquet.crypto.*;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.hadoop.*;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.metadata.*;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.io.*;

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
    Path path = Path.of(message.get("path").asText());
    if (message.get("format").asText().equals("pkmt1")) {
      Configuration conf = Keys.configuration(message);
      var place = new org.apache.hadoop.fs.Path(path.toUri());
      var options = HadoopReadOptions.builder(conf, place).build();
      return ParquetFileReader.open(HadoopInputFile.fromPath(place, conf), options);
    }
    var options = ParquetReadOptions.builder(new PlainParquetConfiguration())
        .usePageChecksumVerification(true).withDecryption(Keys.decryption(message)).build();
    return ParquetFileReader.open(new LocalInputFile(path), options);
  }

  static ObjectNode read(JsonNode message) throws IOException {
    try (ParquetFileReader reader = open(message)) {
      if (message.path("operation").asText().equals("metadata")) return metadata(reader);
      List<BlockMetaData> blocks = reader.getRowGroups();
      for (int n = 0; n < blocks.size(); n++) {
        BloomFilterReader blooms = reader.getBloomFilterDataReader(n);
        for (ColumnChunkMetaData chunk : blocks.get(n).getColumns()) {
          reader.readColumnIndex(chunk);
          reader.readOffsetIndex(chunk);
          blooms.readBloomFilter(chunk);
        }
      }
      return Rows.tagged(reader);
    }
  }

  static ObjectNode metadata(ParquetFileReader reader) {
    Set<String> columns = new TreeSet<>();
    for (BlockMetaData block : reader.getRowGroups())
      for (ColumnChunkMetaData chunk : block.getColumns())
        if (chunk.getValueCount() >= 0) columns.add(chunk.getPath().toDotString());
    ObjectNode found = Messages.outcome("metadata");
    found.set("columns", Messages.JSON.valueToTree(columns));
    return found;
  }

  static ObjectNode write(JsonNode message) throws IOException {
    JsonNode options = message.get("options");
    Path input = Path.of(message.get("input").asText()), path = Path.of(message.get("path").asText());
    try (ParquetFileReader reader = ParquetFileReader.open(new LocalInputFile(input))) {
      var schema = reader.getFileMetaData().getSchema();
      boolean wrapped = message.get("format").asText().equals("pkmt1");
      var place = new org.apache.hadoop.fs.Path(path.toUri());
      Configuration conf = wrapped ? Keys.configuration(message) : new Configuration();
      var builder = ExampleParquetWriter.builder(HadoopOutputFile.fromPath(place, conf)).withConf(conf)
          .withType(schema).withWriterVersion(
              options.path("data_page_version").asInt(1) == 2 ? WriterVersion.PARQUET_2_0 : WriterVersion.PARQUET_1_0);
      if (!wrapped) builder.withEncryption(Keys.encryption(message, schema));
      if (options.path("max_rows_per_page").isInt())
        builder.withPageRowCountLimit(options.get("max_rows_per_page").asInt()).withDictionaryEncoding(false)
            .withMinRowCountForPageSizeCheck(1);
      if (options.path("row_group_size").isInt())
        builder.withRowGroupRowCountLimit(options.get("row_group_size").asInt());
      for (JsonNode column : options.path("bloom_filter_columns"))
        builder.withDictionaryEncoding(column.asText(), false).withBloomFilterEnabled(column.asText(), true)
            .withBloomFilterNDV(column.asText(), Math.max(1, reader.getRecordCount()));
      try (ParquetWriter<Group> writer = builder.build()) {
        for (Group row : Rows.groups(reader)) writer.write(row);
      }
    }
    return Messages.outcome("written");
  }
}

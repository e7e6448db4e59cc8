import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.crypto.*;
import org.apache.parquet.crypto.keytools.*;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.ColumnPath;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.io.*;
import org.apache.parquet.schema.*;

/** parquet-java: reads the files that process.py asks for. */
public class Reader {
  /** A stand-in for a key service, which returns what it was given. */
  public static class Kms implements KmsClient {
    public void initialize(Configuration conf, String id, String url, String token) {}

    public String wrapKey(byte[] key, String master) {
      return Base64.getEncoder().encodeToString(key);
    }

    public byte[] unwrapKey(String wrapped, String master) {
      return Base64.getDecoder().decode(wrapped);
    }
  }

  public static void main(String[] arguments) throws IOException {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      String answer;
      try {
        answer = "ok\t" + read(line.split("\t", -1));
      } catch (Exception error) {
        Throwable cause = error;
        while (cause.getCause() != null && !(cause instanceof ParquetCryptoRuntimeException)) cause = cause.getCause();
        answer = cause.getClass().getSimpleName() + "\t" + String.valueOf(cause.getMessage()).replace("\n", " ");
      }
      System.out.println(answer);
    }
  }

  static String read(String[] fields) throws IOException {
    Path path = new Path(fields[0]);
    Configuration conf = new Configuration();
    if (fields[5].equals("tools")) {
      conf.set("parquet.crypto.factory.class", PropertiesDrivenCryptoFactory.class.getName());
      conf.setClass("parquet.encryption.kms.client.class", Kms.class, KmsClient.class);
    }
    HadoopReadOptions.Builder options = HadoopReadOptions.builder(conf, path);
    if (!fields[2].isEmpty()) options.withDecryption(decryption(fields[2], fields[3], fields[4]));
    try (ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(path, conf), options.build())) {
      if (fields[5].equals("count")) return String.valueOf(reader.getRecordCount());
      MessageType all = reader.getFileMetaData().getSchema(), schema = all;
      if (!fields[1].isEmpty()) {
        List<Type> wanted = new ArrayList<>();
        for (String name : fields[1].split(",")) wanted.add(all.getType(name));
        schema = new MessageType(all.getName(), wanted);
      }
      reader.setRequestedSchema(schema);
      MessageColumnIO columns = new ColumnIOFactory().getColumnIO(schema, all);
      long rows = 0;
      for (PageReadStore pages; (pages = reader.readNextRowGroup()) != null; rows += pages.getRowCount()) {
        RecordReader<Group> records = columns.getRecordReader(pages, new GroupRecordConverter(schema));
        for (long row = 0; row < pages.getRowCount(); row++) records.read();
      }
      return rows + " x " + schema.getFieldCount();
    }
  }

  static FileDecryptionProperties decryption(String footerKey, String prefix, String columnKeys) {
    FileDecryptionProperties.Builder builder = FileDecryptionProperties.builder().withFooterKey(HexFormat.of().parseHex(footerKey));
    if (!prefix.isEmpty()) builder.withAADPrefix(HexFormat.of().parseHex(prefix.substring(1)));
    Map<ColumnPath, ColumnDecryptionProperties> columns = new HashMap<>();
    for (String pair : columnKeys.split(",")) {
      int at = pair.indexOf('=');
      if (at < 0) continue;
      ColumnPath column = ColumnPath.fromDotString(pair.substring(0, at));
      columns.put(column, ColumnDecryptionProperties.builder(column).withKey(HexFormat.of().parseHex(pair.substring(at + 1))).build());
    }
    if (!columns.isEmpty()) builder.withColumnKeys(columns);
    return builder.build();
  }
}

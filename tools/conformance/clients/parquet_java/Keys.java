import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.crypto.*;
import org.apache.parquet.hadoop.metadata.ColumnPath;
import org.apache.parquet.schema.MessageType;

/** Keys of a message, as parquet-java takes them; its builders ignore null. */
class Keys {
  static FileDecryptionProperties decryption(JsonNode message) {
    Map<ColumnPath, ColumnDecryptionProperties> columns = new HashMap<>();
    message.get("column_keys").fields().forEachRemaining(entry -> {
      ColumnPath path = ColumnPath.fromDotString(entry.getKey());
      columns.put(path, ColumnDecryptionProperties.builder(path).withKey(Messages.bytes(entry.getValue())).build());
    });
    var builder = FileDecryptionProperties.builder().withFooterKey(Messages.bytes(message.get("footer_key")))
        .withAADPrefix(Messages.bytes(message.get("aad_prefix")));
    if (!columns.isEmpty()) builder.withColumnKeys(columns);
    if (!message.get("check_footer_integrity").asBoolean()) builder.withoutFooterSignatureVerification();
    return builder.build();
  }

  static FileEncryptionProperties encryption(JsonNode message, MessageType schema) {
    JsonNode options = message.get("options"), keys = message.get("column_keys");
    JsonNode metadata = options.get("column_key_metadata");
    var builder = FileEncryptionProperties.builder(Messages.bytes(message.get("footer_key")))
        .withAlgorithm(ParquetCipher.valueOf(options.get("algorithm").asText()))
        .withFooterKeyMetadata(Messages.bytes(options.get("footer_key_metadata")))
        .withAADPrefix(Messages.bytes(options.get("aad_prefix")));
    if (!options.get("store_aad_prefix").asBoolean()) builder.withoutAADPrefixStorage();
    if (options.get("plaintext_footer").asBoolean()) builder.withPlaintextFooter();
    Set<String> plain = new HashSet<>();
    options.get("plaintext_columns").forEach(name -> plain.add(name.asText()));
    if (keys.isEmpty() && plain.isEmpty()) return builder.build();
    Map<ColumnPath, ColumnEncryptionProperties> columns = new HashMap<>();
    for (ColumnDescriptor column : schema.getColumns()) {
      ColumnPath path = ColumnPath.get(column.getPath());
      if (!plain.contains(column.getPath()[0]))
        columns.put(path, ColumnEncryptionProperties.builder(path).withKey(Messages.bytes(keys.get(path.toDotString())))
            .withKeyMetaData(Messages.bytes(metadata.get(path.toDotString()))).build());
    }
    return builder.withEncryptedColumns(columns).build();
  }

  /** The configuration of the key tools; what to write is in `options`. */
  static Configuration configuration(JsonNode message) {
    Configuration conf = LocalKms.configuration(message.get("master_keys"));
    JsonNode options = message.get("options");
    if (options == null) return conf;
    conf.set("parquet.encryption.double.wrapping", options.get("double_wrapping").asText());
    conf.set("parquet.encryption.key.material.store.internally", options.get("internal_storage").asText());
    String footer = options.get("footer_master").asText();
    List<String> columns = new ArrayList<>();
    options.get("column_masters").fields().forEachRemaining(
        entry -> columns.add(entry.getValue().asText() + ":" + entry.getKey()));
    conf.set("parquet.encryption." + (columns.isEmpty() ? "uniform" : "footer") + ".key", footer);
    if (!columns.isEmpty()) conf.set("parquet.encryption.column.keys", String.join(";", columns));
    return conf;
  }
}

import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.crypto.*;
import org.apache.parquet.crypto.keytools.*;
import org.apache.parquet.hadoop.metadata.ColumnPath;
import org.apache.parquet.schema.MessageType;

/** Keys of a message, as parquet-java takes them. */
class Keys {
  static FileDecryptionProperties decryption(JsonNode message) {
    var builder = FileDecryptionProperties.builder();
    Map<ColumnPath, ColumnDecryptionProperties> columns = new HashMap<>();
    message.get("column_keys").fields().forEachRemaining(entry -> {
      ColumnPath path = ColumnPath.fromDotString(entry.getKey());
      columns.put(path, ColumnDecryptionProperties.builder(path).withKey(Messages.bytes(entry.getValue())).build());
    });
    byte[] footer = Messages.bytes(message.get("footer_key")), prefix = Messages.bytes(message.get("aad_prefix"));
    if (footer != null) builder.withFooterKey(footer);
    if (!columns.isEmpty()) builder.withColumnKeys(columns);
    if (prefix != null) builder.withAADPrefix(prefix);
    if (!message.get("check_footer_integrity").asBoolean()) builder.withoutFooterSignatureVerification();
    return builder.build();
  }

  static FileEncryptionProperties encryption(JsonNode message, MessageType schema) {
    JsonNode options = message.get("options"), keys = message.get("column_keys");
    var builder = FileEncryptionProperties.builder(Messages.bytes(message.get("footer_key")))
        .withAlgorithm(ParquetCipher.valueOf(options.get("algorithm").asText()));
    byte[] text = Messages.bytes(options.get("footer_key_metadata")), prefix = Messages.bytes(options.get("aad_prefix"));
    if (text != null) builder.withFooterKeyMetadata(text);
    if (prefix != null) builder.withAADPrefix(prefix);
    if (prefix != null && !options.get("store_aad_prefix").asBoolean()) builder.withoutAADPrefixStorage();
    if (options.get("plaintext_footer").asBoolean()) builder.withPlaintextFooter();
    if (keys.size() + options.get("plaintext_columns").size() == 0) return builder.build();
    Set<String> plain = new HashSet<>();
    options.get("plaintext_columns").forEach(name -> plain.add(name.asText()));
    Map<ColumnPath, ColumnEncryptionProperties> columns = new HashMap<>();
    for (ColumnDescriptor column : schema.getColumns()) {
      ColumnPath path = ColumnPath.get(column.getPath());
      if (plain.contains(column.getPath()[0])) continue;
      var made = ColumnEncryptionProperties.builder(path);
      byte[] key = Messages.bytes(keys.get(path.toDotString()));
      byte[] of = Messages.bytes(options.get("column_key_metadata").get(path.toDotString()));
      if (key != null) made.withKey(key);
      if (of != null) made.withKeyMetaData(of);
      columns.put(path, made.build());
    }
    return builder.withEncryptedColumns(columns).build();
  }

  /** The configuration of the key tools. */
  static Configuration configuration(JsonNode message) {
    LocalKms.masters = message.get("master_keys");
    KeyToolkit.removeCacheEntriesForAllTokens();
    Configuration conf = new Configuration();
    conf.set("parquet.crypto.factory.class", PropertiesDrivenCryptoFactory.class.getName());
    conf.set("parquet.encryption.kms.client.class", LocalKms.class.getName());
    JsonNode options = message.get("options");
    if (options == null) return conf;
    conf.set("parquet.encryption.footer.key", options.get("footer_master").asText());
    conf.set("parquet.encryption.double.wrapping", options.get("double_wrapping").asText());
    conf.set("parquet.encryption.key.material.store.internally", options.get("internal_storage").asText());
    List<String> columns = new ArrayList<>();
    options.get("column_masters").fields().forEachRemaining(
        entry -> columns.add(entry.getValue().asText() + ":" + entry.getKey()));
    if (columns.isEmpty()) conf.set("parquet.encryption.uniform.key", options.get("footer_master").asText());
    if (columns.isEmpty()) conf.unset("parquet.encryption.footer.key");
    else conf.set("parquet.encryption.column.keys", String.join(";", columns));
    return conf;
  }
}

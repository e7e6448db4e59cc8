package probe;

import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.*;
import org.apache.parquet.crypto.keytools.KmsClient;
import org.apache.parquet.hadoop.metadata.ColumnPath;

/** Keys for Spark: given by the configuration in hex, or by a stand-in for a key service. */
public class Keys implements DecryptionPropertiesFactory {
  public FileDecryptionProperties getFileDecryptionProperties(Configuration conf, Path path) {
    HexFormat hex = HexFormat.of();
    FileDecryptionProperties.Builder builder = FileDecryptionProperties.builder()
        .withFooterKey(hex.parseHex(conf.get("probe.footer")));
    if (conf.get("probe.prefix") != null) builder.withAADPrefix(hex.parseHex(conf.get("probe.prefix")));
    if (conf.getBoolean("probe.plaintext", false)) builder.withPlaintextFilesAllowed();
    Map<ColumnPath, ColumnDecryptionProperties> columns = new HashMap<>();
    for (String pair : conf.getStrings("probe.columns", new String[0])) {
      ColumnPath column = ColumnPath.fromDotString(pair.split("=")[0]);
      columns.put(column, ColumnDecryptionProperties.builder(column).withKey(hex.parseHex(pair.split("=")[1])).build());
    }
    if (!columns.isEmpty()) builder.withColumnKeys(columns);
    return builder.build();
  }

  public static class Kms implements KmsClient {
    public void initialize(Configuration conf, String id, String url, String token) {}

    public String wrapKey(byte[] key, String master) {
      return Base64.getEncoder().encodeToString(key);
    }

    public byte[] unwrapKey(String wrapped, String master) {
      return Base64.getDecoder().decode(wrapped);
    }
  }
}

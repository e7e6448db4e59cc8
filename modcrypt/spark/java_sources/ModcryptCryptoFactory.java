package modcrypt;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.DecryptionPropertiesFactory;
import org.apache.parquet.crypto.EncryptionPropertiesFactory;
import org.apache.parquet.crypto.FileDecryptionProperties;
import org.apache.parquet.crypto.FileEncryptionProperties;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.hadoop.api.WriteSupport;

/**
 * parquet-java's source of keys for files that are read and written by a modcrypt policy.
 *
 * The properties modcrypt.kms.uri and modcrypt.policy configure it; modcrypt.spark.native_options
 * sets them.
 */
public class ModcryptCryptoFactory
    implements DecryptionPropertiesFactory, EncryptionPropertiesFactory {
  /** Whether plaintext files are refused; true unless it is set to false. */
  public static final String REQUIRE_ENCRYPTED = "modcrypt.require.encrypted";

  public ModcryptCryptoFactory() {}

  public FileDecryptionProperties getFileDecryptionProperties(Configuration conf, Path path) {
    PinnedFiles.install(conf, path);
    Policy policy = Policy.in(conf);
    byte[] prefix = PathPrefix.of(policy, path, conf);
    FileDecryptionProperties.Builder builder = FileDecryptionProperties.builder()
        .withKeyRetriever(new FileKeys(conf, path, policy, prefix));
    if (prefix != null) {
      builder.withAADPrefix(prefix);
    } else if (!conf.getBoolean(REQUIRE_ENCRYPTED, true)) {
      builder.withPlaintextFilesAllowed();
    }
    return builder.build();
  }

  public FileEncryptionProperties getFileEncryptionProperties(
      Configuration conf, Path path, WriteSupport.WriteContext context) {
    Policy policy = Policy.in(conf);
    if (policy == null) {
      if (conf.getRaw(ModcryptKmsClient.URI_PROPERTY) == null) throw lost();
      return null;
    }
    return FileEncryption.properties(policy, conf, path, context.getSchema());
  }

  /** Returns the error of a table whose policy did not get here, so that none becomes plaintext. */
  private static ParquetCryptoRuntimeException lost() {
    return new ParquetCryptoRuntimeException(
        ModcryptKmsClient.URI_PROPERTY + " is missing, so options were lost; of TBLPROPERTIES, Spark "
        + "passes only some: put all options in OPTIONS (USING parquet) or SERDEPROPERTIES (Hive)");
  }
}

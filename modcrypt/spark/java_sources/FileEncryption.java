package modcrypt;

import java.security.SecureRandom;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.ParquetProperties;
import org.apache.parquet.crypto.ColumnEncryptionProperties;
import org.apache.parquet.crypto.FileEncryptionProperties;
import org.apache.parquet.crypto.ParquetCipher;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.hadoop.ParquetOutputFormat;
import org.apache.parquet.hadoop.ParquetOutputFormat.JobSummaryLevel;
import org.apache.parquet.hadoop.metadata.ColumnPath;
import org.apache.parquet.schema.MessageType;

/** The encryption of one file by a policy: fresh data keys, which the key service wraps. */
final class FileEncryption {
  private static final SecureRandom RANDOM = new SecureRandom();

  private final Policy policy;
  private final KeyWrapper wrapper;
  private final ExternalMaterial external; // null for key material in the file
  private final Map keys = new HashMap(); // {key, key metadata} by name in the policy

  private FileEncryption(Policy policy, Configuration configuration, Path path) {
    this.policy = policy;
    wrapper = new KeyWrapper(configuration, policy);
    external = policy.internalMaterial ? null : ExternalMaterial.create(path);
  }

  /**
   * Returns the properties of a new file.
   *
   * @param path where the file is written; it may be a temporary place.
   */
  static FileEncryptionProperties properties(
      Policy policy, Configuration configuration, Path path, MessageType schema) {
    checkLevels(policy, configuration);
    checkSummaries(configuration);
    List leaves = schema.getPaths();
    checkNames(policy, leaves);
    byte[] prefix = PathPrefix.ofWritten(policy, path, configuration);
    if (!policy.internalMaterial) WrittenPath.of(path, configuration); // its name must be final
    FileEncryption file = new FileEncryption(policy, configuration, path);
    FileEncryptionProperties properties = file.properties(leaves, prefix);
    if (file.external != null) file.external.write(configuration);
    return properties;
  }

  private FileEncryptionProperties properties(List leaves, byte[] prefix) {
    byte[] footerKey = newKey(policy.dataKeyLength);
    FileEncryptionProperties.Builder builder = FileEncryptionProperties.builder(footerKey)
        .withFooterKeyMetadata(wrapped(footerKey, policy.footerKey, true))
        .withAlgorithm(ParquetCipher.valueOf(policy.algorithm));
    Map columns = new HashMap();
    for (Object leaf : leaves) {
      if (policy.leavesPlaintext((String[]) leaf)) continue;
      ColumnEncryptionProperties column = column((String[]) leaf);
      columns.put(column.getPath(), column);
    }
    builder.withEncryptedColumns(columns);
    if (policy.plaintextFooter) builder.withPlaintextFooter();
    if (prefix != null) builder.withAADPrefix(prefix);
    if (prefix != null && !policy.storesPrefix) builder.withoutAADPrefixStorage();
    return builder.build();
  }

  /** Returns the properties of an encrypted leaf; the leaves of a group that is named share a key. */
  private ColumnEncryptionProperties column(String[] leaf) {
    ColumnEncryptionProperties.Builder builder =
        ColumnEncryptionProperties.builder(ColumnPath.get(leaf));
    String name = policy.nameOf(leaf);
    if (name == null) return builder.build(); // under the footer key
    byte[][] key = (byte[][]) keys.get(name);
    if (key == null) {
      byte[] fresh = newKey(policy.dataKeyLength);
      key = new byte[][] {fresh, wrapped(fresh, policy.ownMaster(leaf), false)};
      keys.put(name, key);
    }
    return builder.withKey(key[0]).withKeyMetaData(key[1]).build();
  }

  /** Returns the key metadata of a data key. */
  private byte[] wrapped(byte[] key, String masterKeyId, boolean isFooterKey) {
    KeyMaterial material = wrapper.wrap(key, masterKeyId, isFooterKey, policy);
    return external == null ? material.encode(null) : external.add(material);
  }

  static byte[] newKey(int length) {
    byte[] key = new byte[length];
    RANDOM.nextBytes(key);
    return key;
  }

  private static void checkNames(Policy policy, List leaves) {
    Set seen = new HashSet();
    Set missing = new TreeSet(policy.masters().keySet());
    boolean encrypts = false;
    for (Object leaf : leaves) {
      String[] path = (String[]) leaf;
      if (!seen.add(Texts.dotted(path))) {
        throw unfit("two columns have the same dotted name, " + Texts.dotted(path) + "; rename one");
      }
      for (int length = 1; length <= path.length; length++) missing.remove(Texts.dotted(path, length));
      encrypts |= !policy.leavesPlaintext(path);
    }
    if (!missing.isEmpty()) {
      throw unfit("the policy names columns that the schema lacks: " + String.join(", ", missing));
    }
    if (!encrypts) throw unfit("the policy leaves all columns in plaintext; name columns to encrypt");
  }

  /** Refuses data pages V2 if the policy encrypts their levels: parquet-java leaves them readable. */
  private static void checkLevels(Policy policy, Configuration configuration) {
    String version = configuration.get(ParquetOutputFormat.WRITER_VERSION);
    boolean second = version != null
        && ParquetProperties.WriterVersion.fromString(version)
            == ParquetProperties.WriterVersion.PARQUET_2_0;
    if (second && policy.encryptsLevels) {
      throw unfit(
          "parquet-java does not encrypt the levels of data pages V2: set parquet.writer.version to"
              + " v1, or data_page_v2_levels of the policy to \"plaintext\"");
    }
  }

  /** Refuses summaries of a folder: parquet-java writes the columns' bounds there in plaintext. */
  private static void checkSummaries(Configuration configuration) {
    boolean named = configuration.get(ParquetOutputFormat.JOB_SUMMARY_LEVEL) != null
        || configuration.get(ParquetOutputFormat.ENABLE_JOB_SUMMARY) != null; // as Spark does
    if (!named) return; // a writer without a committer
    if (ParquetOutputFormat.getJobSummaryLevel(configuration) == JobSummaryLevel.NONE) return;
    throw unfit(
        "parquet-java would write _metadata or _common_metadata in plaintext: set"
            + " parquet.summary.metadata.level to none");
  }

  private static ParquetCryptoRuntimeException unfit(String why) {
    return new ParquetCryptoRuntimeException(why);
  }
}

package modcrypt;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.DecryptionKeyRetriever;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The keys of one file that is read, and the checks that a policy demands.
 *
 * parquet-java asks for the footer key first. Then the whole footer is checked, before parquet-java
 * uses any of it. It asks for a column's key when it reads the column, so that columns whose master
 * key is refused do not keep others from being read.
 */
final class FileKeys implements DecryptionKeyRetriever {
  private static final String GCM = "AES_GCM_V1"; // authenticates all modules
  private static final int FILE_UNIQUE_SIZE = 8; // bytes, as every writer creates it
  private static final int MAX_DAMAGED = 3; // keys of a file that may fail to unwrap
  private static final int MAX_REFUSED = 3; // keys requested under a master key that refuses them
  private static final int MAX_REFUSING = 16; // master keys that may refuse

  private final Configuration configuration;
  private final Path path;
  private final Policy policy;
  private final ExpectedKeys expected;
  private final byte[] prefix; // that the policy demands; null for none
  private final KeyWrapper wrapper;

  private final Map refused = new HashMap(); // count by master key
  private final Set granted = new HashSet();
  private int damaged;
  private ExternalMaterial external; // read once
  private Footer footer;
  private byte[] footerKey;
  private Map columns = new HashMap(); // lists of columns by the key metadata of their own keys

  FileKeys(Configuration configuration, Path path, Policy policy, byte[] prefix) {
    this.configuration = configuration;
    this.path = path;
    this.policy = policy;
    this.prefix = prefix;
    expected = new ExpectedKeys(configuration, policy);
    wrapper = new KeyWrapper(configuration, policy);
  }

  public synchronized byte[] getKey(byte[] keyMetadata) {
    if (footer == null || Arrays.equals(keyMetadata, footer.keyMetadata)) {
      return openFooter(keyMetadata);
    }
    return columnKey(keyMetadata);
  }

  private byte[] openFooter(byte[] keyMetadata) {
    Footer read = Footer.read(path, configuration);
    external = null;
    if (!Arrays.equals(keyMetadata, read.keyMetadata)) {
      throw unfit("the file changed while it was opened");
    }
    checkAlgorithm(read);
    // The border between prefix and aad_file_unique is not authenticated.
    if (prefix != null && read.unique.length != FILE_UNIQUE_SIZE) {
      throw unfit("its aad_file_unique has " + read.unique.length + " bytes instead of 8");
    }
    KeyMaterial material = material(keyMetadata);
    expected.check(material, null, path.toString());
    byte[] key = unwrap(material);
    byte[] used = read.storedPrefix == null ? prefix : read.storedPrefix;
    Map found = checkedColumns(read, key, used);
    List users = (List) found.get(ByteBuffer.wrap(keyMetadata));
    if (users != null) checkApart(users);
    footer = read;
    footerKey = key;
    columns = found;
    return key;
  }

  /** Authenticates the footer; returns the columns by the key metadata of their own keys. */
  private Map checkedColumns(Footer read, byte[] key, byte[] used) {
    Map found = new HashMap();
    try {
      for (Object column : EncryptedColumn.list(read.open(key, used))) {
        expected.checkKind((EncryptedColumn) column);
        index((EncryptedColumn) column, found);
      }
    } catch (ParquetCryptoRuntimeException error) {
      throw unfit(error.getMessage());
    }
    return found;
  }

  private void checkAlgorithm(Footer read) {
    // The name is not authenticated, and AES_GCM_CTR_V1 turns authentication of pages off.
    String accepted = policy == null ? GCM : policy.algorithm;
    if (!read.algorithm.equals(accepted)) {
      throw unfit(
          "encrypted under " + read.algorithm + ", but only " + accepted + " is accepted"
              + (policy == null ? "; pass a policy to read other files" : " by the policy"));
    }
  }

  private static void index(EncryptedColumn column, Map columns) {
    for (Object metadata : column.keyMetadata) {
      List users = (List) columns.get(metadata);
      if (users == null) {
        users = new ArrayList();
        columns.put(metadata, users);
      }
      users.add(column);
    }
  }

  private byte[] columnKey(byte[] keyMetadata) {
    List users = (List) columns.get(ByteBuffer.wrap(keyMetadata));
    if (users == null) throw unfit("the file changed while it was read");
    KeyMaterial material = material(keyMetadata);
    for (Object user : users) {
      expected.check(material, ((EncryptedColumn) user).leaf, path.toString());
    }
    byte[] key = unwrap(material);
    if (Arrays.equals(key, footerKey)) checkApart(users);
    return key;
  }

  /** Refuses columns whose own key is the footer key: its holders could forge them. */
  private void checkApart(List users) {
    for (Object user : users) {
      EncryptedColumn column = (EncryptedColumn) user;
      if (expected.hasOwnKey(column.leaf)) {
        throw unfit(
            "the key of column " + column.name()
                + " is the footer key, but the policy requires a key of its own");
      }
    }
  }

  private byte[] unwrap(KeyMaterial material) {
    raiseIfEnough(material.masterKeyId);
    try {
      byte[] key = wrapper.unwrap(material);
      granted.add(material.masterKeyId);
      return key;
    } catch (KeyAccessDeniedException error) {
      Integer count = (Integer) refused.get(material.masterKeyId);
      refused.put(material.masterKeyId, Integer.valueOf(count == null ? 1 : count.intValue() + 1));
      throw error;
    } catch (UnavailableException error) {
      throw error;
    } catch (ParquetCryptoRuntimeException error) {
      damaged++;
      throw error;
    }
  }

  private KeyMaterial material(byte[] keyMetadata) {
    KeyMetadata key = KeyMetadata.decode(keyMetadata);
    if (key.material != null) return key.material;
    if (external == null) external = ExternalMaterial.read(path, configuration);
    return external.find(key);
  }

  /** Limits requests to the key service: anyone can write a file that names thousands of keys. */
  private void raiseIfEnough(String masterKeyId) {
    if (damaged >= MAX_DAMAGED) {
      throw unfit("key not tried, because 3 other keys of this file do not unwrap");
    }
    if (granted.contains(masterKeyId)) return;
    Integer count = (Integer) refused.get(masterKeyId);
    if (count != null && count.intValue() >= MAX_REFUSED) {
      throw new KeyAccessDeniedException(
          "master key " + Texts.shown(masterKeyId) + " was refused for 3 keys of this file");
    }
    if (count == null && refused.size() >= MAX_REFUSING) {
      throw new KeyAccessDeniedException(
          "key not requested, because 16 other master keys of this file were refused");
    }
  }

  private ParquetCryptoRuntimeException unfit(String why) {
    return new ParquetCryptoRuntimeException(path + ": " + why);
  }
}

package org.apache.iceberg.encryption;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.iceberg.ManifestListFile;
import org.apache.iceberg.util.ByteBuffers;

/** What Iceberg keeps for its own package. No key leaves it, but as a SHA-256. */
public final class Peek {
  private Peek() {}

  /** Sets the clock of an encryption manager, by which it tells the age of its KEKs. */
  public static void shift(EncryptionManager manager, long millis) {
    if (manager instanceof StandardEncryptionManager standard) {
      standard.setTestTimeShift(millis);
    }
  }

  public static String sha256(ByteBuffer bytes) {
    try {
      byte[] found = ByteBuffers.toByteArray(bytes.duplicate());
      return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(found));
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Describes standard key metadata; null for none. */
  public static Map<String, Object> described(ByteBuffer metadata) {
    if (metadata == null) {
      return null;
    }
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("sha256", sha256(metadata));
    StandardKeyMetadata parsed = StandardKeyMetadata.parse(metadata.duplicate());
    found.put("key_sha256", sha256(parsed.encryptionKey()));
    found.put("key_length", parsed.encryptionKey().remaining());
    found.put("aad_length", parsed.aadPrefix() == null ? null : parsed.aadPrefix().remaining());
    found.put("file_length", parsed.fileLength());
    return found;
  }

  /** Describes the key metadata of a manifest list, by the id of its entry. */
  public static Map<String, Object> ofList(EncryptionManager manager, String id) {
    return described(
        EncryptionUtil.decryptManifestListKeyMetadata(
            new ManifestListFile() {
              @Override
              public String location() {
                return "";
              }

              @Override
              public String encryptionKeyID() {
                return id;
              }

              @Override
              public ByteBuffer decryptKeyMetadata(EncryptionManager unused) {
                throw new UnsupportedOperationException();
              }
            },
            manager));
  }
}

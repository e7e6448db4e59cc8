package org.apache.iceberg.encryption;

import java.io.Closeable;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Map;

/**
 * What modcrypt implements of Iceberg's interface (1.11 and later), which Spark does not contain.
 *
 * Sources are compiled against it; the jar does not contain it, so that Iceberg's own is used.
 */
public interface KeyManagementClient extends Serializable, Closeable {
  ByteBuffer wrapKey(ByteBuffer key, String wrappingKeyId);

  ByteBuffer unwrapKey(ByteBuffer wrappedKey, String wrappingKeyId);

  void initialize(Map properties);

  void close();
}

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.*;
import java.net.URL;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.crypto.keytools.*;

/** A key service in memory, which connects to the address that it is given, as one over HTTP would. */
public class LocalKms implements KmsClient {
  /** The master keys of the message that is answered. */
  static JsonNode masters;

  /** The configuration of parquet-java's key tools that lets them use this key service, and no cached keys. */
  static Configuration configuration(JsonNode masterKeys) {
    masters = masterKeys;
    KeyToolkit.removeCacheEntriesForAllTokens();
    Configuration conf = new Configuration();
    conf.set("parquet.crypto.factory.class", PropertiesDrivenCryptoFactory.class.getName());
    conf.set("parquet.encryption.kms.client.class", LocalKms.class.getName());
    return conf;
  }

  @Override
  public void initialize(Configuration conf, String instance, String url, String token) {
    if (!url.startsWith("http:")) return;
    try {
      new URL(url).openConnection().getInputStream().close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public String wrapKey(byte[] key, String id) {
    return KeyToolkit.encryptKeyLocally(key, master(id), id.getBytes(UTF_8));
  }

  @Override
  public byte[] unwrapKey(String wrapped, String id) {
    return KeyToolkit.decryptKeyLocally(wrapped, master(id), id.getBytes(UTF_8));
  }

  private static byte[] master(String id) {
    if (!masters.has(id)) throw new ParquetCryptoRuntimeException("there is no master key " + id);
    return Messages.bytes(masters.get(id));
  }
}

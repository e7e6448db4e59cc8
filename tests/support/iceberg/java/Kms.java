import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.util.ByteBuffers;

/**
 * The key service of Iceberg's own tests: nonce (12), AES-GCM(master key, key), tag; no AAD.
 *
 * <p>In a catalog of Spark, the property {@code master.ID} has the master key in hex.
 */
public final class Kms implements KeyManagementClient {
  private static final Map<String, SecretKeySpec> MASTERS = new ConcurrentHashMap<>();
  private static final int NONCE = 12;

  private static final String PROPERTY = "master.";

  static void keep(String id, JsonNode hex) {
    keep(id, hex.asText());
  }

  private static void keep(String id, String hex) {
    MASTERS.put(id, new SecretKeySpec(HexFormat.of().parseHex(hex), "AES"));
  }

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String wrappingKeyId) {
    byte[] nonce = new byte[NONCE];
    new SecureRandom().nextBytes(nonce);
    byte[] plain = ByteBuffers.toByteArray(key);
    byte[] sealed = crypted(Cipher.ENCRYPT_MODE, wrappingKeyId, nonce, plain, 0);
    return ByteBuffer.allocate(NONCE + sealed.length).put(nonce).put(sealed).flip();
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrappedKey, String wrappingKeyId) {
    byte[] block = ByteBuffers.toByteArray(wrappedKey);
    return ByteBuffer.wrap(crypted(Cipher.DECRYPT_MODE, wrappingKeyId, block, block, NONCE));
  }

  @Override
  public void initialize(Map<String, String> properties) {
    properties.forEach(
        (name, hex) -> {
          if (name.startsWith(PROPERTY)) {
            keep(name.substring(PROPERTY.length()), hex);
          }
        });
  }

  private static byte[] crypted(int mode, String id, byte[] nonce, byte[] data, int from) {
    SecretKeySpec master = MASTERS.get(id);
    if (master == null) {
      throw new IllegalArgumentException("there is no master key " + id);
    }
    try {
      Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
      cipher.init(mode, master, new GCMParameterSpec(128, nonce, 0, NONCE));
      return cipher.doFinal(data, from, data.length - from);
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException("not wrapped by the master key " + id, e);
    }
  }
}

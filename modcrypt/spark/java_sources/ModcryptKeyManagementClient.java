package modcrypt;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * Iceberg's client for the key service that the catalog property modcrypt.kms.uri names.
 *
 * Wrapped keys have the form of modcrypt's Python (modcrypt/iceberg/keys/wrapping_keys.py): base64
 * text of a service becomes its bytes, other text is stored as ASCII. Keys are bound to no AAD,
 * because Iceberg has none.
 */
public class ModcryptKeyManagementClient implements KeyManagementClient {
  private static final long serialVersionUID = 1;

  private String uri; // it names the places of secrets, and contains none

  public ModcryptKeyManagementClient() {}

  public void initialize(Map properties) {
    String named = (String) properties.get(ModcryptKmsClient.URI_PROPERTY);
    if (named != null && named.toLowerCase().startsWith("azure-kms:")) {
      throw new ParquetCryptoRuntimeException(
          "for Azure Key Vault, use Iceberg's own client: encryption.kms-type=azure");
    }
    ModcryptKmsClient.serviceAt(named, ""); // refuses an invalid URI now
    uri = named;
  }

  public ByteBuffer wrapKey(ByteBuffer key, String wrappingKeyId) {
    byte[] plain = bytes(key);
    try {
      return ByteBuffer.wrap(stored(client().wrapKey(plain, wrappingKeyId)));
    } finally {
      Arrays.fill(plain, (byte) 0);
    }
  }

  public ByteBuffer unwrapKey(ByteBuffer wrappedKey, String wrappingKeyId) {
    return ByteBuffer.wrap(client().unwrapKey(text(bytes(wrappedKey)), wrappingKeyId));
  }

  public void close() {} // all clients share a service, with its keys and connections

  private ModcryptKmsClient client() {
    return new ModcryptKmsClient(uri);
  }

  private static byte[] bytes(ByteBuffer buffer) {
    byte[] copy = new byte[buffer.remaining()];
    ((ByteBuffer) buffer.duplicate()).get(copy);
    return copy;
  }

  /** Returns the bytes that a table stores for a service's text. */
  private static byte[] stored(String wrapped) {
    byte[] decoded = Texts.base64(wrapped);
    if (decoded != null && text(decoded).equals(wrapped)) return decoded;
    byte[] ascii = wrapped.getBytes(StandardCharsets.UTF_8);
    if (isPrintable(ascii)) return ascii;
    throw new ParquetCryptoRuntimeException(
        "the wrapped key from the key service is neither base64 nor printable ASCII");
  }

  /** Undoes `stored`: the bytes of a service are never all printable, but for 1 in 10^18. */
  private static String text(byte[] stored) {
    if (isPrintable(stored)) return new String(stored, StandardCharsets.US_ASCII);
    return Base64.getEncoder().encodeToString(stored);
  }

  private static boolean isPrintable(byte[] data) {
    for (int n = 0; n < data.length; n++) {
      if (data[n] < 0x20 || data[n] > 0x7e) return false;
    }
    return true;
  }
}

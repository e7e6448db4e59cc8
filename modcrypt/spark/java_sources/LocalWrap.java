package modcrypt;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The text format of keys wrapped by a keyring or a token (modcrypt/kms/local_wrap.py). */
final class LocalWrap {
  private static final String NO_VERSION = "NO_VERSION";
  private static final int MAX_WRAPPED = 1024;

  final String version; // a number; null for none
  final byte[] block; // nonce (12), ciphertext, tag (16)

  private LocalWrap(String version, byte[] block) {
    this.version = version;
    this.block = block;
  }

  static String format(String version, byte[] block) {
    return "{\"masterKeyVersion\":\"" + (version == null ? NO_VERSION : version) + "\",\"encryptedKey\":\""
        + Base64.getEncoder().encodeToString(block) + "\"}";
  }

  static LocalWrap parse(String text) {
    if (text.length() > MAX_WRAPPED) throw malformed();
    Object version = NO_VERSION;
    Object encoded = text;
    if (text.startsWith("{")) {
      Map members = Texts.object(text);
      if (members == null || !members.keySet().equals(
          new HashSet(Arrays.asList(new String[] {"masterKeyVersion", "encryptedKey"})))) {
        throw malformed();
      }
      version = members.get("masterKeyVersion");
      encoded = members.get("encryptedKey");
    }
    byte[] block = Texts.base64(encoded);
    if (block == null || block.length < 44 || block.length > 60) throw malformed();
    String number = String.valueOf(version);
    if (!number.equals(NO_VERSION) && !number.matches("[1-9][0-9]{0,8}")) throw malformed();
    return new LocalWrap(number.equals(NO_VERSION) ? null : number, block);
  }

  /** Returns the AAD of a wrapped key; an id has no zero byte, so it is unambiguous. */
  static byte[] aad(String id, byte[] aad) {
    byte[] name = id.getBytes(StandardCharsets.UTF_8);
    if (aad.length == 0) return name;
    byte[] both = Arrays.copyOf(name, name.length + 1 + aad.length);
    System.arraycopy(aad, 0, both, name.length + 1, aad.length);
    return both;
  }

  private static ParquetCryptoRuntimeException malformed() {
    return new ParquetCryptoRuntimeException("the wrapped key has an unknown format");
  }
}

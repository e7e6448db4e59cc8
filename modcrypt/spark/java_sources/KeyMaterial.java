package modcrypt;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The wrapped form of a data key: PKMT1, the JSON of the key tools.
 *
 * modcrypt/pkmt1/material.py describes it. The id and URL of a key service in it are ignored.
 */
final class KeyMaterial {
  private static final int KEK_ID_SIZE = 16; // bytes
  private static final int MAX_METADATA = 64 << 10; // bytes
  private static final int MAX_SHARED_METADATA = 16 << 20; // bytes, with recipients
  private static final int MAX_NAME = 1024; // characters
  private static final int MAX_WRAPPED = 16 << 10; // characters

  final boolean isFooterKey;
  final String masterKeyId;
  final String wrappedKey;
  final byte[] kekId; // null in single wrapping
  final String wrappedKek;

  KeyMaterial(
      boolean isFooterKey, String masterKeyId, String wrappedKey, byte[] kekId, String wrappedKek) {
    this.isFooterKey = isFooterKey;
    this.masterKeyId = masterKeyId;
    this.wrappedKey = wrappedKey;
    this.kekId = kekId;
    this.wrappedKek = wrappedKek;
  }

  /** Parses the members of key material; throws if they are invalid. */
  static KeyMaterial of(Map members) {
    boolean twice = flag(members, "doubleWrapping");
    byte[] kekId = twice ? Texts.base64(name(members, "keyEncryptionKeyID")) : null;
    if (twice && (kekId == null || kekId.length != KEK_ID_SIZE)) {
      throw invalid("its keyEncryptionKeyID is not the base64 of 16 bytes");
    }
    return new KeyMaterial(
        flag(members, "isFooterKey"),
        name(members, "masterKeyID"),
        wrapped(members, "wrappedDEK"),
        kekId,
        twice ? wrapped(members, "wrappedKEK") : null);
  }

  /** Returns the members of PKMT1 JSON, which are strings, numbers or booleans. */
  static Map members(byte[] data) {
    boolean shared = new String(data, StandardCharsets.ISO_8859_1).contains("modcryptRecipients");
    int most = shared ? MAX_SHARED_METADATA : MAX_METADATA;
    Map members = data.length > most ? null : Texts.object(data);
    if (members == null || !"PKMT1".equals(members.get("keyMaterialType"))) {
      throw invalid("it is not PKMT1 JSON, or too long; the writer did not use the key tools");
    }
    for (Iterator values = members.values().iterator(); values.hasNext(); ) {
      Object value = values.next();
      if (value instanceof Map || value instanceof java.util.List) throw invalid("it is nested");
    }
    return members;
  }

  /** Returns the material as JSON; for storage beside the file, with the id of the write. */
  byte[] encode(String write) {
    Map members = new LinkedHashMap();
    members.put("keyMaterialType", "PKMT1");
    if (write == null) members.put("internalStorage", Boolean.TRUE);
    members.put("isFooterKey", Boolean.valueOf(isFooterKey));
    if (isFooterKey) { // other readers require them
      members.put("kmsInstanceID", "DEFAULT");
      members.put("kmsInstanceURL", "DEFAULT");
    }
    members.put("masterKeyID", masterKeyId);
    members.put("wrappedDEK", wrappedKey);
    members.put("doubleWrapping", Boolean.valueOf(kekId != null));
    if (kekId != null) {
      members.put("keyEncryptionKeyID", Texts.toBase64(kekId));
      members.put("wrappedKEK", wrappedKek);
    }
    if (write != null) KeyMetadata.mark(members, write);
    byte[] json = Texts.json(members);
    if (json.length > MAX_METADATA) throw invalid("it is too long");
    return json;
  }

  static boolean flag(Map members, String name) {
    String value = String.valueOf(members.get(name)); // early versions write them as strings
    if (value.equals("true") || value.equals("false")) return value.equals("true");
    throw invalid("its " + name + " is neither true nor false");
  }

  static String name(Map members, String name) {
    Object value = members.get(name);
    if (value instanceof String) {
      String text = (String) value;
      if (!text.isEmpty() && text.length() <= MAX_NAME && Texts.isPrintable(text)) return text;
    }
    throw invalid("its " + name + " is not a string of 1 to 1024 printable characters");
  }

  private static String wrapped(Map members, String name) {
    Object value = members.get(name);
    if (value instanceof String) {
      String text = (String) value;
      boolean ascii = StandardCharsets.US_ASCII.newEncoder().canEncode(text);
      if (!text.isEmpty() && text.length() <= MAX_WRAPPED && ascii && Texts.isPrintable(text)) {
        return text;
      }
    }
    throw invalid("its " + name + " is not a wrapped key");
  }

  static ParquetCryptoRuntimeException invalid(String why) {
    return new ParquetCryptoRuntimeException("the key metadata is not valid key material: " + why);
  }
}

package modcrypt;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The encryption policy in the property modcrypt.policy, which modcrypt's Python writes as JSON.
 *
 * modcrypt/kms/policy.py describes the members; all of them are present here, except those that
 * name the key service.
 */
final class Policy {
  private static final String PROPERTY = "modcrypt.policy";

  private static final int MAX_TEXT = 8 << 20; // characters: escapes lengthen a policy of 1 MiB
  private static final int MAX_LIFETIME = 7 * 24 * 3600; // a revocation must reach running JVMs
  private static final String[] MEMBERS = {
    "footer_key", "column_keys", "plaintext_columns", "encryption_algorithm", "plaintext_footer",
    "aad_prefix", "store_aad_prefix", "data_page_v2_levels", "double_wrapping",
    "internal_key_material", "data_key_length_bits", "kek_length_bits", "cache_lifetime_seconds",
  };

  final String footerKey;
  final String algorithm;
  final String prefix; // template of AAD prefixes; null for no prefix
  final boolean storesPrefix;
  final boolean plaintextFooter;
  final boolean encryptsLevels;
  final boolean doubleWrapping;
  final boolean internalMaterial;
  final int dataKeyLength; // bytes
  final int kekLength;
  final double cacheLifetime; // seconds

  private final Map masters = new HashMap(); // by column or group; null for plaintext columns

  private Policy(Map members) {
    footerKey = text(members, "footer_key");
    algorithm = text(members, "encryption_algorithm");
    prefix = members.get("aad_prefix") == null ? null : text(members, "aad_prefix");
    storesPrefix = flag(members, "store_aad_prefix");
    plaintextFooter = flag(members, "plaintext_footer");
    encryptsLevels = !text(members, "data_page_v2_levels").equals("plaintext");
    doubleWrapping = flag(members, "double_wrapping");
    internalMaterial = flag(members, "internal_key_material");
    dataKeyLength = keyLength(members, "data_key_length_bits");
    kekLength = keyLength(members, "kek_length_bits");
    cacheLifetime = ((Number) of(members, "cache_lifetime_seconds", Number.class)).doubleValue();
    if (!(cacheLifetime >= 0 && cacheLifetime <= MAX_LIFETIME)) {
      throw invalid("cache_lifetime_seconds must be 0 to " + MAX_LIFETIME);
    }
    Map keys = (Map) of(members, "column_keys", Map.class);
    for (Iterator entries = keys.entrySet().iterator(); entries.hasNext(); ) {
      Map.Entry entry = (Map.Entry) entries.next();
      name((List) of(keys, (String) entry.getKey(), List.class), (String) entry.getKey());
    }
    name((List) of(members, "plaintext_columns", List.class), null);
  }

  /** Returns the policy of a configuration; null if it has none. */
  static Policy in(Configuration configuration) {
    String text = configuration.getRaw(PROPERTY);
    if (text == null || text.isEmpty()) return null;
    Map members = text.length() > MAX_TEXT ? null : Texts.object(text);
    // A member that this jar does not know may be a demand that it would not fulfil.
    if (members == null || !members.keySet().equals(new HashSet(Arrays.asList(MEMBERS)))) {
      throw invalid("it must be a JSON object with the members " + String.join(", ", MEMBERS));
    }
    return new Policy(members);
  }

  /** Returns the longest name in the policy that is a leaf's or of a group around it, or null. */
  String nameOf(String[] leaf) {
    for (int length = leaf.length; length > 0; length--) {
      String name = Texts.dotted(leaf, length);
      if (masters.containsKey(name)) return name;
    }
    return null;
  }

  /** Returns the master key of a leaf's own key; null if the leaf has none. */
  String ownMaster(String[] leaf) {
    String name = nameOf(leaf);
    return name == null ? null : (String) masters.get(name);
  }

  boolean leavesPlaintext(String[] leaf) {
    String name = nameOf(leaf);
    return name != null && masters.get(name) == null;
  }

  /** Returns the columns and groups with their master keys; null for those left in plaintext. */
  Map masters() {
    return masters;
  }

  /** Returns whether the policy names a master key for the footer or any column. */
  boolean names(String masterKeyId) {
    return footerKey.equals(masterKeyId) || masters.containsValue(masterKeyId);
  }

  private void name(List columns, String master) {
    for (Iterator names = columns.iterator(); names.hasNext(); ) {
      Object column = names.next();
      if (!(column instanceof String) || masters.containsKey(column)) {
        throw invalid("a column is named twice, or its name is not a string");
      }
      masters.put(column, master);
    }
  }

  private static String text(Map members, String name) {
    return (String) of(members, name, String.class);
  }

  private static boolean flag(Map members, String name) {
    return ((Boolean) of(members, name, Boolean.class)).booleanValue();
  }

  private static int keyLength(Map members, String name) {
    int bits = ((Number) of(members, name, Number.class)).intValue();
    if (bits != 128 && bits != 192 && bits != 256) throw invalid(name + " must be 128, 192 or 256");
    return bits / 8;
  }

  private static Object of(Map members, String name, Class kind) {
    Object value = members.get(name);
    if (!kind.isInstance(value)) throw invalid(name + " must be a " + kind.getSimpleName());
    return value;
  }

  private static ParquetCryptoRuntimeException invalid(String what) {
    return new ParquetCryptoRuntimeException(
        PROPERTY + " is invalid: " + what + "; create it with modcrypt.spark.native_options");
  }
}

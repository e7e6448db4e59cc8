package modcrypt;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The master keys that a reader accepts; modcrypt/kms/expected_keys.py explains the rules.
 *
 * The policy decides. Without one, only the ids in modcrypt.master.key.ids count, or any id if the
 * property is missing.
 */
final class ExpectedKeys {
  private static final String PROPERTY = "modcrypt.master.key.ids";

  private static final int MAX_SHOWN = 5;

  private final Policy policy; // null if there is none
  private final Set declared = new HashSet();
  private final boolean anything;

  ExpectedKeys(Configuration configuration, Policy policy) {
    this.policy = policy;
    String text = configuration.getRaw(PROPERTY);
    boolean none = text == null || text.isEmpty();
    anything = policy == null && none;
    if (none) return;
    List ids = Texts.list(text);
    if (ids == null) {
      throw new ParquetCryptoRuntimeException(PROPERTY + " must be a JSON list of strings");
    }
    declared.addAll(ids);
  }

  /** Checks the master key of key material before the key service is asked; null: the footer's. */
  void check(KeyMaterial material, String[] leaf, String file) {
    if (anything) return;
    Set ids = accepted(leaf);
    if (ids.contains(material.masterKeyId)) return;
    boolean named = policy != null && policy.names(material.masterKeyId);
    throw new ParquetCryptoRuntimeException(
        (leaf == null ? "footer key" : "column " + Texts.shown(Texts.dotted(leaf)))
            + ": the key in " + file + " is wrapped under master key "
            + Texts.shown(material.masterKeyId) + ", not under " + shown(ids)
            + (named
                ? "; the policy assigns that master key to another part of the file"
                : "; pass master_key_ids to native_options to accept that master key too"));
  }

  /** Checks how a column is encrypted: it must be as the policy says, or stricter. */
  void checkKind(EncryptedColumn column) {
    if (policy == null) return;
    if (column.isPlaintext() && !policy.leavesPlaintext(column.leaf)) {
      throw unfit(column, "in plaintext, but the policy requires encryption");
    }
    // Otherwise, anyone with only the footer key could replace the column.
    if (column.isUnderFooterKey() && hasOwnKey(column.leaf)) {
      throw unfit(
          column, "encrypted with the footer key, but the policy requires a key of its own");
    }
  }

  boolean hasOwnKey(String[] leaf) {
    return policy != null && policy.ownMaster(leaf) != null;
  }

  /** Returns the ids that may protect a column, or the footer if the leaf is null. */
  private Set accepted(String[] leaf) {
    if (policy == null) return declared;
    Set ids = new HashSet();
    for (Object id : declared) {
      if (!policy.names((String) id)) ids.add(id);
    }
    String own = leaf == null ? null : policy.ownMaster(leaf);
    ids.add(own == null ? policy.footerKey : own);
    return ids;
  }

  private static String shown(Set ids) {
    StringBuilder text = new StringBuilder();
    int count = 0;
    for (Object id : new TreeSet(ids)) {
      if (count++ == MAX_SHOWN) return text + " or " + (ids.size() - MAX_SHOWN) + " more";
      text.append(text.length() == 0 ? "" : ", ").append(Texts.shown((String) id));
    }
    return text.length() == 0 ? "any that is expected" : text.toString();
  }

  private static ParquetCryptoRuntimeException unfit(EncryptedColumn column, String why) {
    return new ParquetCryptoRuntimeException("column " + column.name() + " is " + why);
  }
}

package modcrypt;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.crypto.keytools.KeyToolkit;

/**
 * A reader of the local keyring, file:PATH, that modcrypt's Python writes.
 *
 * modcrypt/kms/keyring/keyring_document.py describes the format of the file, and
 * modcrypt/kms/local_wrap.py that of wrapped keys. Each call sees changes by other processes.
 */
final class Keyring implements KeyService {
  private static final long MAX_FILE = 64L << 20;
  private static final int MAX_PASSPHRASE = 4096;
  private static final int SALT_SIZE = 16;
  private static final int MIN_N = 1 << 14;
  private static final int MAX_N = 1 << 18;
  private static final int MAX_R = 8;
  private static final int MAX_P = 4;
  private static final int MAX_WORK = MAX_N * 8; // n * r * p
  private static final int OTHERS = 077; // bits of a file's mode: the rights of its group and of others

  // The newest generation that this process has seen, by path and by id of the keyring.
  private static final Map NEWEST = new HashMap();

  private final Path path;
  private final String passphrase; // reference to it; null if there is none
  private final byte[] aad;
  private final Map derived = new HashMap(); // keys from the passphrase, by the parameters of scrypt
  private Object stamp;
  private Map keys;

  Keyring(String uri, byte[] aad) {
    KmsUri parts = new KmsUri(uri, new String[] {"passphrase"});
    String location = parts.location;
    if (location.startsWith("//")) {
      int slash = location.indexOf('/', 2);
      String host = slash < 0 ? location.substring(2) : location.substring(2, slash);
      if (slash < 0 || !(host.isEmpty() || host.equals("localhost"))) {
        throw new ParquetCryptoRuntimeException(
            "a file: URI cannot name another machine: use file:PATH or file:///PATH");
      }
      location = location.substring(slash);
    }
    String name = Texts.unquote(location);
    if (name == null || name.replace("/", "").isEmpty()) {
      throw new ParquetCryptoRuntimeException("the URI of a keyring must name a file: file:PATH");
    }
    this.path = Texts.path(name);
    this.passphrase = parts.reference("passphrase");
    this.aad = aad;
  }

  // --- wrapping ---

  public String wrap(byte[] key, String id) {
    List versions = versions(master(id), id);
    int newest = versions.size();
    byte[] value = value(id, versions, newest);
    String encoded = KeyToolkit.encryptKeyLocally(key, value, LocalWrap.aad(id, aad));
    Arrays.fill(value, (byte) 0);
    return LocalWrap.format(String.valueOf(newest), Base64.getDecoder().decode(encoded));
  }

  public byte[] unwrap(String wrapped, String id) {
    Map master = master(id);
    List versions = versions(master, id);
    LocalWrap parts = LocalWrap.parse(wrapped);
    String encoded = Base64.getEncoder().encodeToString(parts.block);
    if (parts.version != null) {
      return opened(encoded, id, versions, Integer.parseInt(parts.version), true);
    }
    for (int number = versions.size(); number > 0; number--) {
      if (!isEnabled(versions, number)) continue;
      byte[] key = opened(encoded, id, versions, number, false);
      if (key != null) return key;
    }
    value(id, versions, versions.size()); // none is enabled: throws the reason
    throw unfit(id);
  }

  private byte[] opened(String encoded, String id, List versions, int number, boolean must) {
    byte[] value = value(id, versions, number);
    try {
      return KeyToolkit.decryptKeyLocally(encoded, value, LocalWrap.aad(id, aad));
    } catch (ParquetCryptoRuntimeException error) {
      if (must) throw unfit(id);
      return null;
    } finally {
      Arrays.fill(value, (byte) 0);
    }
  }

  // --- master keys ---

  private Map master(String id) {
    Object found = current().get(id);
    if (found == null) {
      throw new ParquetCryptoRuntimeException(
          "the keyring " + path + " has no master key " + Texts.shown(id));
    }
    demand(found, new String[] {"enabled", "versions"}, "a master key");
    Map master = (Map) found;
    if (!Boolean.TRUE.equals(master.get("enabled"))) {
      throw new KeyAccessDeniedException("master key " + id + " is disabled in its keyring");
    }
    return master;
  }

  private List versions(Map master, String id) {
    Object versions = master.get("versions");
    if (!(versions instanceof List) || ((List) versions).isEmpty()) {
      throw broken("master key " + id + " is malformed");
    }
    return (List) versions;
  }

  private boolean isEnabled(List versions, int number) {
    Object version = versions.get(number - 1);
    return version instanceof Map && "enabled".equals(((Map) version).get("state"));
  }

  /** Returns the key of a version; throws if it is missing or disabled. */
  private byte[] value(String id, List versions, int number) {
    if (number > versions.size()) {
      throw new ParquetCryptoRuntimeException(
          "the keyring " + path + " has no version " + number + " of master key " + id
              + "; its newest is " + versions.size());
    }
    Object version = versions.get(number - 1);
    String what = "version " + number + " of master key " + id;
    if (!(version instanceof Map)) throw broken(what + " is malformed");
    Map members = (Map) version;
    Object state = members.get("state");
    if ("destroyed".equals(state) || "disabled".equals(state)) {
      throw new KeyAccessDeniedException(what + " is " + state + " in its keyring");
    }
    byte[] value = Texts.base64(members.get("value"));
    boolean placed = Integer.valueOf(number).equals(members.get("version"));
    boolean sound = value != null && (value.length == 16 || value.length == 24 || value.length == 32);
    if (!placed || !"enabled".equals(state) || !sound) throw broken(what + " is malformed");
    return value;
  }

  // --- the file ---

  /** Returns the current master keys of the file. */
  private synchronized Map current() {
    try {
      for (Map status = status(); !status.equals(stamp); status = status()) {
        Map document = document(status);
        Map found = keys(document, status);
        if (seen(path.toAbsolutePath().normalize().toString(), document)) {
          keys = found;
          stamp = status;
        } else if (status.equals(status())) { // else it was replaced meanwhile
          throw broken(
              "it is older than the one that this process has read: it was rolled back; restart the"
                  + " process if you restored a backup on purpose");
        }
      }
      return keys;
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException(
          "the keyring " + path + " can't be read: " + error.getClass().getSimpleName());
    }
  }

  private Map status() throws IOException {
    return Files.readAttributes(path, "unix:dev,ino,lastModifiedTime,size,mode,uid");
  }

  /** Records a file's id and generation; returns false if a newer one was recorded. */
  private static boolean seen(String place, Map document) {
    String id = (String) document.get("id"); // null in version 1 of the format
    Object told = document.get("generation");
    long generation = told instanceof Number ? ((Number) told).longValue() : 0;
    synchronized (NEWEST) {
      Map known = (Map) NEWEST.get(place);
      if (known == null) {
        known = new HashMap();
        NEWEST.put(place, known);
      }
      Long newest = (Long) known.get(id);
      if (id == null && known.size() > (newest == null ? 0 : 1)) return false;
      if (newest != null && generation < newest.longValue()) return false;
      known.put(id, Long.valueOf(generation));
      return true;
    }
  }

  private Map document(Map status) throws IOException {
    if (!Files.isRegularFile(path)) throw broken("it is not a regular file");
    if (((Long) status.get("size")).longValue() > MAX_FILE) {
      throw broken("it is larger than " + (MAX_FILE >> 20) + " MiB");
    }
    Map document = Texts.object(Files.readAllBytes(path));
    if (document == null || !"modcrypt-keyring".equals(document.get("format"))) {
      throw broken("it is not a keyring: its format is not modcrypt-keyring");
    }
    checkOwner(((Integer) status.get("uid")).intValue());
    boolean first = Integer.valueOf(1).equals(document.get("version"));
    if (!first && !Integer.valueOf(2).equals(document.get("version"))) {
      throw broken("its format version is not supported: only versions 1 and 2 are");
    }
    boolean sealed = "scrypt".equals(document.get("protection"));
    String names = "format version protection" + (first ? "" : " id generation")
        + (sealed ? " scrypt sealed" : " keys");
    demand(document, names.split(" "), "a keyring");
    Object generation = document.get("generation");
    boolean counted = generation instanceof Integer || generation instanceof Long;
    if (!first && (!counted || ((Number) generation).longValue() < 0
        || !String.valueOf(document.get("id")).matches("[0-9a-f]{32}"))) {
      throw broken("its id or generation is malformed");
    }
    return document;
  }

  private Map keys(Map document, Map status) {
    Object found = null;
    if ("scrypt".equals(document.get("protection"))) {
      found = unsealed(document);
    } else if ("none".equals(document.get("protection"))) {
      checkClear(((Integer) status.get("mode")).intValue());
      found = document.get("keys");
    }
    if (!(found instanceof Map)) throw broken("its protection is unknown");
    return (Map) found;
  }

  private void checkOwner(int owner) {
    int own = owner;
    try {
      own = ((Integer) Files.getAttribute(java.nio.file.Paths.get("/proc/self"), "unix:uid")).intValue();
    } catch (IOException error) { // not Linux: only the file's mode is checked
      return;
    }
    if (owner != own && owner != 0) {
      throw broken("it belongs to another user (uid " + owner + "): change its owner to yourself");
    }
  }

  private void checkClear(int mode) {
    if (passphrase != null) {
      throw new ParquetCryptoRuntimeException(
          "a passphrase was passed, but the keyring " + path + " is in plaintext and may have"
              + " replaced an encrypted one; if it has not, remove passphrase= from the URI");
    }
    if ((mode & OTHERS) != 0) {
      throw new ParquetCryptoRuntimeException(
          "the keyring " + path + " contains its keys in plaintext, and other users can access the"
              + " file; run chmod 600 on it");
    }
  }

  // --- under a passphrase ---

  private Map unsealed(Map document) {
    demand(document.get("scrypt"), new String[] {"n", "r", "p", "salt"}, "the member scrypt");
    Map scrypt = (Map) document.get("scrypt");
    int n = count(scrypt, "n", MIN_N, MAX_N);
    int r = count(scrypt, "r", 1, MAX_R);
    int p = count(scrypt, "p", 1, MAX_P);
    byte[] salt = Texts.base64(scrypt.get("salt"));
    if ((n & (n - 1)) != 0 || (long) n * r * p > MAX_WORK || salt == null || salt.length != SALT_SIZE) {
      throw broken("its scrypt parameters exceed the limits");
    }
    // The header as Python encodes it: sorted by name, without spaces.
    String edition = document.get("id") == null ? "" : ",\"generation\":"
        + document.get("generation") + ",\"id\":\"" + document.get("id") + "\"";
    String header = "{\"format\":\"modcrypt-keyring\"" + edition + ",\"protection\":\"scrypt\",\"scrypt\":{\"n\":"
        + n + ",\"p\":" + p + ",\"r\":" + r + ",\"salt\":\"" + scrypt.get("salt")
        + "\"},\"version\":" + document.get("version") + "}";
    byte[] sealed = Texts.base64(document.get("sealed"));
    if (sealed == null || sealed.length < 28) throw broken("its encrypted part is not valid base64");
    String parameters = String.valueOf(scrypt);
    byte[] key = (byte[]) derived.get(parameters);
    if (key == null) key = derive(salt, n, r, p);
    byte[] clear = null;
    try {
      byte[] bound = header.getBytes(StandardCharsets.UTF_8);
      clear = KeyToolkit.decryptKeyLocally((String) document.get("sealed"), key, bound);
    } catch (ParquetCryptoRuntimeException error) {
      derived.remove(parameters);
      throw new KeyAccessDeniedException(
          "the keyring " + path + " does not decrypt: the passphrase is wrong or bytes were"
              + " altered; AES-GCM cannot tell which");
    }
    derived.put(parameters, key);
    Map found = Texts.object(clear);
    Arrays.fill(clear, (byte) 0);
    return found;
  }

  private byte[] derive(byte[] salt, int n, int r, int p) {
    if (passphrase == null) {
      throw new KeyAccessDeniedException(
          "the keyring " + path + " is encrypted: name the place of its passphrase in the URI:"
              + " ?passphrase=env:NAME or ?passphrase=file:PATH");
    }
    byte[] phrase = Texts.secret(passphrase, MAX_PASSPHRASE, true, "the keyring's passphrase");
    if (phrase.length == 0 || phrase.length > MAX_PASSPHRASE) {
      throw new KeyAccessDeniedException(
          "the keyring " + path + ": no passphrase found at " + passphrase + ", or it is longer"
              + " than " + MAX_PASSPHRASE + " bytes");
    }
    try {
      return Scrypt.derive(phrase, salt, n, r, p, 32);
    } catch (OutOfMemoryError error) {
      throw new ParquetCryptoRuntimeException(
          "out of memory: checking a keyring's passphrase needs " + (n * r >> 13) + " MiB");
    } catch (GeneralSecurityException error) {
      throw new ParquetCryptoRuntimeException("this JVM has no HMAC-SHA-256");
    } finally {
      Arrays.fill(phrase, (byte) 0);
    }
  }

  private int count(Map members, String name, int low, int high) {
    Object value = members.get(name);
    int number = value instanceof Integer ? ((Integer) value).intValue() : -1;
    if (number < low || number > high) throw broken("its scrypt parameters exceed the limits");
    return number;
  }

  // --- errors ---

  private void demand(Object value, String[] names, String what) {
    if (!(value instanceof Map) || !((Map) value).keySet().equals(new HashSet(Arrays.asList(names)))) {
      throw broken(what + " must be an object with exactly the members " + String.join(", ", names));
    }
  }

  private ParquetCryptoRuntimeException broken(String why) {
    return new ParquetCryptoRuntimeException("the keyring " + path + ": " + why);
  }

  private static ParquetCryptoRuntimeException unfit(String id) {
    return new ParquetCryptoRuntimeException(
        "a wrapped key does not unwrap under master key " + Texts.shown(id) + ": altered, or wrapped"
            + " with another one or for another use; AES-GCM cannot tell which");
  }
}

package modcrypt;

import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.crypto.keytools.KeyToolkit;

/**
 * A wrapper and unwrapper of data keys, by a key service or under KEKs that the service wraps.
 *
 * All files and tasks share the KEKs for the lifetime of the policy; the service receives one
 * request for each KEK, however many threads need it.
 */
final class KeyWrapper {
  private static final double DEFAULT_LIFETIME = 600; // seconds
  private static final double REFUSAL_LIFETIME = 30;
  private static final double UNAVAILABLE_LIFETIME = 1;
  private static final int KEK_ID_SIZE = 16; // bytes
  private static final int MAX_CACHED = 100000; // KEKs; when it is reached, the cache is emptied

  private static final ConcurrentHashMap READING = new ConcurrentHashMap(); // Entry by place
  private static final ConcurrentHashMap WRITING = new ConcurrentHashMap(); // Kek by master key

  private final ModcryptKmsClient service = new ModcryptKmsClient();
  private final String name; // of the key service in the cache
  private final double lifetime;

  KeyWrapper(Configuration configuration, Policy policy) {
    service.initialize(configuration, null, null, null);
    name = configuration.getRaw(ModcryptKmsClient.URI_PROPERTY) + "\n"
        + configuration.getRaw(ModcryptKmsClient.AAD_PROPERTY);
    lifetime = policy == null ? DEFAULT_LIFETIME : policy.cacheLifetime;
  }

  /** Wraps a data key as the policy says. */
  KeyMaterial wrap(byte[] key, String masterKeyId, boolean isFooterKey, Policy policy) {
    if (!policy.doubleWrapping) {
      String wrapped = service.wrapKey(key, masterKeyId);
      return new KeyMaterial(isFooterKey, masterKeyId, wrapped, null, null);
    }
    Kek fresh = new Kek();
    Kek known = (Kek) WRITING.putIfAbsent(name + "\n" + policy.kekLength + masterKeyId, fresh);
    Kek kek = known == null ? fresh : known;
    synchronized (kek) {
      kek.renew(service, masterKeyId, policy);
      String wrapped = KeyToolkit.encryptKeyLocally(key, kek.key, kek.id);
      return new KeyMaterial(isFooterKey, masterKeyId, wrapped, kek.id, kek.wrapped);
    }
  }

  /** Unwraps the data key of key material. */
  byte[] unwrap(KeyMaterial material) {
    if (material.kekId == null) return service.unwrapKey(material.wrappedKey, material.masterKeyId);
    byte[] wrapped = Texts.base64(material.wrappedKey);
    int length = wrapped == null ? 0 : wrapped.length - 28; // nonce and tag
    if (length != 16 && length != 24 && length != 32) {
      throw KeyMaterial.invalid("its wrappedDEK is not the base64 of a wrapped key");
    }
    byte[] kek = kek(material);
    try {
      return KeyToolkit.decryptKeyLocally(material.wrappedKey, kek, material.kekId);
    } catch (ParquetCryptoRuntimeException error) {
      throw KeyMaterial.invalid(
          "the data key does not unwrap under its KEK (master key "
              + Texts.shown(material.masterKeyId) + "): altered bytes, or the KEK of another file");
    }
  }

  private byte[] kek(KeyMaterial material) {
    String place = name + "\n" + material.masterKeyId + "\n" + Texts.toBase64(material.kekId) + "\n"
        + material.wrappedKek;
    if (READING.size() >= MAX_CACHED) READING.clear();
    Entry fresh = new Entry();
    Entry known = (Entry) READING.putIfAbsent(place, fresh);
    Entry entry = known == null ? fresh : known;
    synchronized (entry) {
      if (!entry.isValid(lifetime)) {
        entry.ask(service, material);
      }
      return entry.key();
    }
  }

  /** The KEK that currently wraps data keys under one master key. */
  private static final class Kek {
    byte[] key;
    byte[] id;
    String wrapped;
    long since;

    void renew(ModcryptKmsClient service, String masterKeyId, Policy policy) {
      if (key != null && (System.nanoTime() - since) / 1e9 < policy.cacheLifetime) return;
      key = null;
      byte[] fresh = FileEncryption.newKey(policy.kekLength);
      wrapped = service.wrapKey(fresh, masterKeyId);
      id = FileEncryption.newKey(KEK_ID_SIZE);
      since = System.nanoTime();
      key = fresh;
    }
  }

  /** The answer of the key service for one KEK: the key, or a refusal. */
  private static final class Entry {
    private byte[] key;
    private RuntimeException refusal;
    private long since;

    boolean isValid(double lifetime) {
      double seconds = (System.nanoTime() - since) / 1e9;
      if (key != null) return seconds < lifetime;
      if (refusal == null) return false;
      boolean temporary = refusal instanceof UnavailableException;
      return seconds < (temporary ? UNAVAILABLE_LIFETIME : REFUSAL_LIFETIME);
    }

    void ask(ModcryptKmsClient service, KeyMaterial material) {
      key = null;
      refusal = null;
      try {
        key = service.unwrapKey(material.wrappedKek, material.masterKeyId);
      } catch (KeyAccessDeniedException error) {
        refusal = error;
      } catch (UnavailableException error) {
        refusal = error;
      }
      since = System.nanoTime();
    }

    byte[] key() {
      if (key != null) return key;
      String message = refusal.getMessage(); // the refusal has the stack of another task
      if (refusal instanceof UnavailableException) throw new UnavailableException(message);
      throw new KeyAccessDeniedException(message);
    }
  }
}

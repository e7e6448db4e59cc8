package modcrypt;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.Key;
import java.security.KeyStore;
import java.security.Provider;
import java.security.ProviderException;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A client for keys on a PKCS#11 token, by Java's SunPKCS11. URIs and wrapped keys are those of
 * modcrypt's Python (modcrypt/kms/services/pkcs11.py); keys never leave the token.
 *
 * SunPKCS11 finds keys only by label, and does not return a nonce that a token chose itself.
 */
final class Pkcs11Kms implements KeyService {
  private static final int MAX_PIN = 255;
  private static final int NONCE = 12;
  private static final int TAG = 16;
  private static final Pattern CODE = Pattern.compile("CKR_[A-Z_]{1,60}");
  private static final String NOT_PERMITTED = "CKR_KEY_FUNCTION_NOT_PERMITTED";

  private static final List DENIED = Arrays.asList(new String[] {
      "CKR_PIN_INCORRECT", "CKR_PIN_INVALID", "CKR_PIN_LEN_RANGE", "CKR_PIN_EXPIRED",
      "CKR_PIN_LOCKED", "CKR_USER_PIN_NOT_INITIALIZED", "CKR_USER_ANOTHER_ALREADY_LOGGED_IN",
      "CKR_USER_TOO_MANY_TYPES", "CKR_FUNCTION_REJECTED"});
  private static final List UNAVAILABLE = Arrays.asList(new String[] {
      "CKR_DEVICE_ERROR", "CKR_DEVICE_MEMORY", "CKR_DEVICE_REMOVED", "CKR_FUNCTION_FAILED",
      "CKR_GENERAL_ERROR", "CKR_HOST_MEMORY", "CKR_SESSION_CLOSED", "CKR_SESSION_COUNT",
      "CKR_SESSION_HANDLE_INVALID", "CKR_SLOT_ID_INVALID", "CKR_TOKEN_NOT_PRESENT",
      "CKR_TOKEN_NOT_RECOGNIZED", "CKR_USER_NOT_LOGGED_IN"});
  // Tokens report the last two for a wrong tag as well as for failures of their own.
  private static final List MISMATCH = Arrays.asList(new String[] {
      "CKR_ENCRYPTED_DATA_INVALID", "CKR_ENCRYPTED_DATA_LEN_RANGE", "CKR_GENERAL_ERROR",
      "CKR_FUNCTION_FAILED"});

  private final Pkcs11Uri uri;
  private final byte[] aad;
  private final SecureRandom random = new SecureRandom();
  private Provider token;
  private char[] refused; // a PIN that the token refused: it may lock itself after a few

  Pkcs11Kms(String uri, byte[] aad) {
    this(uri, aad, System.getenv());
  }

  public Pkcs11Kms(String uri, byte[] aad, Map environment) {
    this.uri = new Pkcs11Uri(uri, environment);
    this.aad = aad;
  }

  // --- wrapping ---

  public synchronized String wrap(byte[] key, String id) {
    Key master = master(id);
    byte[] bound = LocalWrap.aad(id, aad);
    byte[] block = sealed(master, key, bound, id);
    demandOwnNonce(master, key, block, bound, id);
    return LocalWrap.format(null, block);
  }

  public synchronized byte[] unwrap(String wrapped, String id) {
    LocalWrap parts = LocalWrap.parse(wrapped);
    if (parts.version != null) {
      throw new ParquetCryptoRuntimeException(
          "the wrapped key names a version, but keys on a PKCS#11 token have none");
    }
    Key master = master(id);
    try {
      return crypt(Cipher.DECRYPT_MODE, master, parts.block, LocalWrap.aad(id, aad));
    } catch (GeneralSecurityException error) {
      throw unfit(error, master, id);
    } catch (ProviderException error) {
      throw unfit(error, master, id);
    }
  }

  private byte[] sealed(Key master, byte[] key, byte[] bound, String id) {
    byte[] nonce = new byte[NONCE];
    random.nextBytes(nonce);
    byte[] block = Arrays.copyOf(nonce, NONCE + key.length);
    System.arraycopy(key, 0, block, NONCE, key.length);
    byte[] sealed;
    try {
      sealed = crypt(Cipher.ENCRYPT_MODE, master, block, bound);
    } catch (GeneralSecurityException error) {
      throw failure(error, "master key " + Texts.shown(id), "CKA_ENCRYPT");
    } catch (ProviderException error) {
      throw failure(error, "master key " + Texts.shown(id), "CKA_ENCRYPT");
    } finally {
      Arrays.fill(block, (byte) 0);
    }
    byte[] whole = Arrays.copyOf(nonce, NONCE + sealed.length);
    System.arraycopy(sealed, 0, whole, NONCE, sealed.length);
    if (whole.length == NONCE + key.length + TAG) return whole;
    throw new ParquetCryptoRuntimeException(
        "master key " + Texts.shown(id) + ": the token's AES-GCM returned " + sealed.length
            + " bytes for a key of " + key.length + "; expected a tag of " + TAG);
  }

  /** Checks that the token used our nonce, if the key may decrypt: else nothing could unwrap. */
  private void demandOwnNonce(Key master, byte[] key, byte[] block, byte[] bound, String id) {
    try {
      if (Arrays.equals(crypt(Cipher.DECRYPT_MODE, master, block, bound), key)) return;
    } catch (GeneralSecurityException error) {
      if (code(error).equals(NOT_PERMITTED)) return;
    } catch (ProviderException error) {
      if (code(error).equals(NOT_PERMITTED)) return;
    }
    throw new ParquetCryptoRuntimeException(
        "master key " + Texts.shown(id) + ": the token does not unwrap what it wrapped; if it"
            + " chooses nonces itself, use the data source modcrypt, because SunPKCS11 does not"
            + " return them");
  }

  /** Encrypts or decrypts what follows the nonce in a block. */
  private byte[] crypt(int mode, Key master, byte[] block, byte[] bound)
      throws GeneralSecurityException {
    Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding", token);
    cipher.init(mode, master, new GCMParameterSpec(TAG * 8, block, 0, NONCE));
    cipher.updateAAD(bound);
    return cipher.doFinal(block, NONCE, block.length - NONCE);
  }

  // --- token and keys ---

  /** Logs in, and returns a key; each call sees changes by other processes. */
  private Key master(String id) {
    if (token == null) token = Pkcs11Slots.find(uri);
    char[] pin = pin();
    if (refused != null && Arrays.equals(refused, pin)) { // retries would lock the token
      throw new KeyAccessDeniedException(
          "the token refused the PIN at " + uri.pinSource + "; it is not tried again");
    }
    try {
      KeyStore keys = KeyStore.getInstance("PKCS11", token);
      keys.load(null, pin);
      refused = null;
      return found(keys, id);
    } catch (IOException error) {
      if (DENIED.contains(code(error))) refused = pin;
      throw failure(error, "the PKCS#11 token", "");
    } catch (GeneralSecurityException error) {
      throw failure(error, "the PKCS#11 token", "");
    } catch (ProviderException error) {
      throw failure(error, "the PKCS#11 token", "");
    }
  }

  private static Key found(KeyStore keys, String id) throws GeneralSecurityException {
    if (!StandardCharsets.US_ASCII.newEncoder().canEncode(id)) {
      throw new ParquetCryptoRuntimeException(
          "master key " + Texts.shown(id) + ": SunPKCS11 finds only keys whose labels are ASCII;"
              + " use the data source modcrypt, or a key with another label");
    }
    Key key = id.isEmpty() ? null : keys.getKey(id, null);
    if (key != null && key.getAlgorithm().equals("AES")) return key;
    throw new ParquetCryptoRuntimeException(
        "the token has no AES key with the label " + Texts.shown(id));
  }

  private char[] pin() {
    String what = "the PIN of the PKCS#11 token";
    byte[] read = Texts.secret(uri.pinSource, MAX_PIN + 1, false, what);
    String pin = Texts.utf8(read);
    Arrays.fill(read, (byte) 0);
    if (pin != null && pin.isEmpty()) {
      throw new KeyAccessDeniedException(
          what + " is missing at " + uri.pinSource + ": set pin-source in the URI, or"
              + " MODCRYPT_PKCS11_PIN, for driver and executors");
    }
    if (pin == null || read.length > MAX_PIN || !pin.matches("\\P{Cntrl}+")) {
      throw new KeyAccessDeniedException(
          what + " at " + uri.pinSource + " is not UTF-8, has unprintable characters, or is longer"
              + " than " + MAX_PIN + " bytes");
    }
    return pin.toCharArray();
  }

  // --- errors ---

  private ParquetCryptoRuntimeException unfit(Exception error, Key master, String id) {
    String what = "master key " + Texts.shown(id);
    if (!MISMATCH.contains(code(error)) && !code(error).isEmpty()) {
      return failure(error, what, "CKA_DECRYPT");
    }
    byte[] probe = new byte[NONCE + TAG];
    random.nextBytes(probe);
    try { // fails as well if the token itself fails
      crypt(Cipher.ENCRYPT_MODE, master, probe, new byte[1]);
    } catch (GeneralSecurityException again) {
      if (!code(again).equals(NOT_PERMITTED)) return failure(again, what, "CKA_ENCRYPT");
    } catch (ProviderException again) {
      if (!code(again).equals(NOT_PERMITTED)) return failure(again, what, "CKA_ENCRYPT");
    }
    return new ParquetCryptoRuntimeException(
        "the key does not unwrap under " + what + ": altered bytes, another master key or other"
            + " AAD");
  }

  /** Turns an error of SunPKCS11 into one that repeats only the token's code. */
  private ParquetCryptoRuntimeException failure(Exception error, String what, String permission) {
    String code = code(error);
    if (code.equals(NOT_PERMITTED)) {
      return new KeyAccessDeniedException(what + " is disabled: it lacks " + permission);
    }
    String message = what + ": the token reports "
        + (code.isEmpty() ? error.getClass().getSimpleName() : code);
    if (DENIED.contains(code)) return new KeyAccessDeniedException(message);
    token = null; // the next attempt looks for it again
    if (UNAVAILABLE.contains(code)) return new UnavailableException(message);
    Throwable cause = error.getCause();
    if (cause != null && String.valueOf(cause.getMessage()).contains("same CKA_LABEL")) {
      return new ParquetCryptoRuntimeException(
          "two keys on the PKCS#11 token have the same label, which the JVM cannot tell apart:"
              + " change one");
    }
    return new ParquetCryptoRuntimeException(message);
  }

  /** Returns the token's code in an error or its causes, CKR_...; empty without one. */
  private static String code(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      Matcher found = CODE.matcher(String.valueOf(cause.getMessage()));
      if (found.find()) return found.group();
    }
    return "";
  }
}

package modcrypt;

import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.zip.CRC32C;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A client for a key ring of Google Cloud KMS, gcp-kms://RING[/cryptoKeys/NAME], by its REST API.
 * URIs and wrapped keys are those of modcrypt's Python (modcrypt/kms/services/gcp.py).
 */
final class GoogleKms implements KeyService {
  private static final String SERVICE = "https://cloudkms.googleapis.com";
  private static final int MAX_AAD = 64 << 10;
  private static final int MAX_WRAPPED = 16 << 10;
  private static final String KEYS = "/cryptoKeys/";
  private static final Pattern RING = Pattern.compile(
      "projects/[\\w.:-]{1,100}/locations/[\\w-]{1,63}/keyRings/[\\w-]{1,63}");
  private static final Pattern NAME = Pattern.compile("[\\w-]{1,63}");
  private static final Pattern STATUS = Pattern.compile("[A-Z_]{1,40}");
  private static final List UNAVAILABLE = Arrays.asList(new String[] {
      "ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"});

  private final String ring;
  private final byte[] aad;
  private final Http http;
  private final GoogleCredentials credentials;

  GoogleKms(String uri, byte[] aad) {
    this(uri, aad, System.getenv(), null, null);
  }

  /** @param service address that stands in for that of Google Cloud KMS; null for none. */
  public GoogleKms(String uri, byte[] aad, Map environment, String service, String oauth) {
    KmsUri parts = new KmsUri(uri, new String[0]);
    String location = parts.location.startsWith("//")
        ? parts.location.substring(2) : parts.location;
    int at = location.indexOf(KEYS);
    ring = at < 0 ? location : location.substring(0, at);
    boolean named = at < 0 || NAME.matcher(location.substring(at + KEYS.length())).matches();
    if (!RING.matcher(ring).matches() || !named || !parts.fragment.isEmpty()) {
      throw new ParquetCryptoRuntimeException(
          "the URI of a key ring is gcp-kms://projects/P/locations/L/keyRings/R, that of a key in it"
              + " ends in /cryptoKeys/NAME");
    }
    if (aad.length > MAX_AAD) {
      throw new ParquetCryptoRuntimeException(
          "Google Cloud KMS supports AAD of up to " + MAX_AAD + " bytes, not " + aad.length);
    }
    this.aad = aad;
    http = new Http("Google Cloud KMS", service == null ? SERVICE : service, new String[0], environment);
    credentials = new GoogleCredentials(environment, oauth);
  }

  // --- wrapping ---

  public String wrap(byte[] key, String id) {
    Map answer = asked("encrypt", "plaintext", key, id);
    byte[] wrapped = Texts.base64(answer.get("ciphertext"));
    boolean arrived = isTrue(answer, "verifiedPlaintextCrc32c")
        && (aad.length == 0 || isTrue(answer, "verifiedAdditionalAuthenticatedDataCrc32c"));
    if (wrapped == null || !arrived || !checks(answer, "ciphertextCrc32c", wrapped)) {
      throw damaged(id);
    }
    demandKey(answer.get("name"), id);
    String text = Base64.getEncoder().encodeToString(wrapped);
    if (text.length() > MAX_WRAPPED) throw unlikeKms();
    return text;
  }

  public byte[] unwrap(String wrapped, String id) {
    byte[] data = wrapped.length() > MAX_WRAPPED ? null : Texts.base64(wrapped);
    if (data == null) {
      throw new ParquetCryptoRuntimeException(
          "the wrapped key for master key " + Texts.shown(id) + " is not base64");
    }
    Map answer = asked("decrypt", "ciphertext", data, id);
    byte[] key = Texts.base64(answer.get("plaintext"));
    if (key == null || !checks(answer, "plaintextCrc32c", key)) throw damaged(id);
    return key;
  }

  private Map asked(String verb, String member, byte[] data, String id) {
    String resource = resource(id);
    Map body = new TreeMap();
    put(body, member, data);
    if (aad.length > 0) put(body, "additionalAuthenticatedData", aad);
    String[] headers = new String[] {
        "Content-Type", "application/json", "Authorization", credentials.token().header()};
    HttpAnswer answer =
        http.send("POST", "/v1/" + resource + ":" + verb, Texts.json(body), headers);
    if (answer.status != 200) throw refusal(answer, id, verb);
    Map content = answer.json();
    if (content == null) throw unlikeKms();
    return content;
  }

  /** Returns the resource name of a key; a file may name any ring, and control that ring. */
  private String resource(String id) {
    String prefix = ring + KEYS;
    String name = id.startsWith(prefix) ? id.substring(prefix.length()) : id;
    if (NAME.matcher(name).matches()) return prefix + name;
    throw new ParquetCryptoRuntimeException(
        "master key " + Texts.shown(id) + " is not in key ring " + ring + ", the only one that this"
            + " client uses; use the URI of its own ring");
  }

  /** Checks the key of an answer; its project may be a number where the URI has a name. */
  private void demandKey(Object used, String id) {
    String resource = resource(id);
    String wanted = resource.substring(resource.indexOf("/locations/")) + "/cryptoKeyVersions/";
    String name = used instanceof String ? (String) used : "";
    int at = name.indexOf(wanted);
    if (at < 0 || !name.substring(at + wanted.length()).matches("[0-9]{1,9}")) throw unlikeKms();
  }

  // --- checksums ---

  private static void put(Map body, String member, byte[] data) {
    body.put(member, Base64.getEncoder().encodeToString(data));
    body.put(member + "Crc32c", String.valueOf(crc32c(data)));
  }

  private static boolean checks(Map answer, String member, byte[] data) {
    return String.valueOf(answer.get(member)).equals(String.valueOf(crc32c(data)));
  }

  private static long crc32c(byte[] data) {
    CRC32C sum = new CRC32C();
    sum.update(data, 0, data.length);
    return sum.getValue();
  }

  private static boolean isTrue(Map answer, String member) {
    return Boolean.TRUE.equals(answer.get(member));
  }

  // --- errors ---

  /** Turns an answer into an error, which repeats only Google's status. */
  private ParquetCryptoRuntimeException refusal(HttpAnswer answer, String id, String verb) {
    if (answer.isRedirect()) return unlikeKms();
    String what = "master key " + id + ": Google Cloud KMS ";
    String status = status(answer);
    if (status.equals("NOT_FOUND") || answer.status == 404) {
      return new ParquetCryptoRuntimeException("Google Cloud KMS has no master key " + id);
    }
    if (status.equals("FAILED_PRECONDITION")) {
      return new KeyAccessDeniedException(
          what + "answered " + status + ": the key, or the version needed, is disabled or destroyed");
    }
    if (answer.status == 401 || answer.status == 403) {
      credentials.forget();
      return new KeyAccessDeniedException(
          what + "answered " + status + ": the credentials do not permit the use of the key");
    }
    if (UNAVAILABLE.contains(status) || answer.status == 429 || answer.status >= 500) {
      return answer.unavailable(what + "answered " + answer.status + " " + status);
    }
    if (status.equals("INVALID_ARGUMENT")) {
      return new ParquetCryptoRuntimeException(verb.equals("encrypt")
          ? what + "cannot wrap with it; check that its purpose is ENCRYPT_DECRYPT"
          : what + "does not unwrap the key: altered bytes, another master key or other AAD");
    }
    return new ParquetCryptoRuntimeException(what + "answered " + answer.status + " " + status);
  }

  private static String status(HttpAnswer answer) {
    Map content = answer.json();
    Object error = content == null ? null : content.get("error");
    Object status = error instanceof Map ? ((Map) error).get("status") : null;
    String text = status instanceof String ? (String) status : "";
    return STATUS.matcher(text).matches() ? text : "an unknown error";
  }

  private static ParquetCryptoRuntimeException unlikeKms() {
    return new ParquetCryptoRuntimeException(
        "the answer is not from Google Cloud KMS for this key; check proxies");
  }

  private static UnavailableException damaged(String id) {
    return new UnavailableException(
        "master key " + id + ": a checksum of Google Cloud KMS does not match; data was damaged in"
            + " transit");
  }
}

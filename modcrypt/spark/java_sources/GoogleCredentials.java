package modcrypt;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/**
 * Google's default credentials: the file of GOOGLE_APPLICATION_CREDENTIALS or of gcloud, with the
 * key of a service account or a user's refresh token; else the metadata server.
 *
 * Secrets go only to Google's own address for tokens, whatever a file names.
 */
final class GoogleCredentials extends TokenCredentials {
  private static final String OAUTH = "https://oauth2.googleapis.com";
  private static final String SCOPE = "https://www.googleapis.com/auth/cloudkms";
  private static final int MAX_FILE = 64 << 10;
  private static final int LIFETIME = 3600; // seconds; Google's limit

  private final String oauth;

  /** @param oauth address that stands in for that of Google's token service; null for none. */
  GoogleCredentials(Map environment, String oauth) {
    super(environment);
    this.oauth = oauth == null ? OAUTH : oauth;
  }

  AccessToken fetched() {
    String file = file();
    if (file == null) return fromMetadata();
    byte[] read = Texts.secret("file:" + file, MAX_FILE, false, "the credentials for Google");
    Map members = Texts.object(read);
    Object type = members == null ? null : members.get("type");
    Object domain = members == null ? null : members.get("universe_domain");
    if (domain != null && !domain.equals("googleapis.com")) type = null;
    if ("service_account".equals(type)) return fromServiceAccount(members, file);
    if ("authorized_user".equals(type)) return fromUser(members, file);
    throw new KeyAccessDeniedException(
        "the credentials for Google in " + file + " are not those of a service account or user of"
            + " googleapis.com; for others, use the data source modcrypt");
  }

  private String file() {
    String named = get("GOOGLE_APPLICATION_CREDENTIALS");
    if (named != null) return named;
    String folder = get("CLOUDSDK_CONFIG");
    if (folder == null) {
      String home = get("HOME");
      if (home == null) return null;
      folder = home + "/.config/gcloud";
    }
    Path usual = Texts.path(folder + "/application_default_credentials.json");
    return Files.isRegularFile(usual) ? usual.toString() : null;
  }

  // --- kinds of credentials ---

  private AccessToken fromServiceAccount(Map members, String file) {
    long now = Instant.now().getEpochSecond();
    Map head = new TreeMap();
    head.put("alg", "RS256");
    head.put("typ", "JWT");
    head.put("kid", text(members, "private_key_id", file));
    Map claims = new TreeMap();
    claims.put("iss", text(members, "client_email", file));
    claims.put("scope", SCOPE);
    claims.put("aud", OAUTH + "/token");
    claims.put("iat", Long.valueOf(now));
    claims.put("exp", Long.valueOf(now + LIFETIME));
    String signed = base64url(Texts.json(head)) + "." + base64url(Texts.json(claims));
    byte[] signature = signature(text(members, "private_key", file), signed);
    if (signature == null) throw malformed("private_key", file);
    return granted(new String[] {
        "grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion", signed + "." + base64url(signature)}, file);
  }

  private AccessToken fromUser(Map members, String file) {
    return granted(new String[] {
        "grant_type", "refresh_token",
        "client_id", text(members, "client_id", file),
        "client_secret", text(members, "client_secret", file),
        "refresh_token", text(members, "refresh_token", file)}, file);
  }

  private AccessToken granted(String[] form, String file) {
    Http http = new Http("Google's token service", oauth, new String[0], environment);
    return granted(http, "/token", form, "Google's token service", "the credentials in " + file);
  }

  private AccessToken fromMetadata() {
    String host = get("GCE_METADATA_HOST");
    if (host == null || !host.matches("[A-Za-z0-9.-]+(:[0-9]{1,5})?")) {
      host = "metadata.google.internal";
    }
    Http http = new Http("Google's metadata server", "http://" + host, new String[0], environment, 3);
    try {
      return accepted(
          http.send("GET", "/computeMetadata/v1/instance/service-accounts/default/token", null,
              new String[] {"Metadata-Flavor", "Google"}),
          "Google's metadata server", "the service account of this machine");
    } catch (UnavailableException error) {
      throw new UnavailableException(
          "Google Cloud KMS: no default credentials, and no metadata server answers: set"
              + " GOOGLE_APPLICATION_CREDENTIALS for driver and executors");
    }
  }

  // --- small helpers ---

  private static String text(Map members, String name, String file) {
    Object value = members.get(name);
    if (value instanceof String && !((String) value).isEmpty()) return (String) value;
    throw malformed(name, file);
  }

  private static KeyAccessDeniedException malformed(String name, String file) {
    return new KeyAccessDeniedException(
        "the credentials for Google in " + file + ": " + name + " is missing or malformed");
  }

  /** Signs by a key in PEM (PKCS #8); returns null if it is none. */
  private static byte[] signature(String pem, String text) {
    String body = pem.replaceAll("-----(BEGIN|END) PRIVATE KEY-----", "").replaceAll("\\s", "");
    byte[] encoded = Texts.base64(body);
    if (encoded == null) return null;
    try {
      PrivateKey key = KeyFactory.getInstance("RSA").generatePrivate(
          new PKCS8EncodedKeySpec(encoded));
      Signature signer = Signature.getInstance("SHA256withRSA");
      signer.initSign(key);
      signer.update(text.getBytes(StandardCharsets.US_ASCII));
      return signer.sign();
    } catch (GeneralSecurityException error) {
      return null;
    } finally {
      Arrays.fill(encoded, (byte) 0);
    }
  }

  private static String base64url(byte[] data) {
    return Base64.getUrlEncoder().withoutPadding().encodeToString(data);
  }
}

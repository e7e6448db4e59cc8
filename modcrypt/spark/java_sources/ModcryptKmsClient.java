package modcrypt;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.crypto.keytools.KmsClient;

/**
 * parquet-java's client for the key service that the property modcrypt.kms.uri names.
 *
 * It ignores the instance, URL and token that parquet-java passes: the first two may come from a
 * file (CVE-2026-73334), and the URI names the places of tokens and passphrases.
 */
public class ModcryptKmsClient implements KmsClient {
  public static final String URI_PROPERTY = "modcrypt.kms.uri";
  public static final String AAD_PROPERTY = "modcrypt.kms.aad";

  // One service for each URI: all files, tasks and clients share its keys and connections.
  private static final Map SERVICES = new ConcurrentHashMap();
  private static final Map PACES = new ConcurrentHashMap(); // by service

  private KeyService service;

  public ModcryptKmsClient() {}

  ModcryptKmsClient(String uri) {
    service = serviceAt(uri, "");
  }

  public void initialize(Configuration conf, String instance, String url, String token) {
    service = serviceAt(conf.getRaw(URI_PROPERTY), conf.getRaw(AAD_PROPERTY));
  }

  /** Returns the service that a URI names, without calling it; throws if the URI is invalid. */
  public static KeyService serviceAt(String uri, String aad) {
    if (uri == null || uri.isEmpty()) {
      throw new ParquetCryptoRuntimeException(
          "no key service is named: set " + URI_PROPERTY + ", as modcrypt.spark.native does");
    }
    String bound = aad == null ? "" : aad;
    String name = uri + "\n" + bound;
    KeyService found = (KeyService) SERVICES.get(name);
    if (found == null) {
      KeyService made = opened(uri, bound.getBytes(StandardCharsets.UTF_8));
      found = (KeyService) SERVICES.putIfAbsent(name, made);
      if (found == null) found = made;
    }
    return found;
  }

  private static KeyService opened(String uri, byte[] aad) {
    String scheme = uri.substring(0, Math.max(0, uri.indexOf(':'))).toLowerCase();
    if (scheme.equals("file")) return new Keyring(uri, aad);
    if (scheme.equals("hcvault")) return new VaultTransit(uri, aad);
    if (scheme.equals("aws-kms")) return new AwsKms(uri, aad);
    if (scheme.equals("gcp-kms")) return new GoogleKms(uri, aad);
    if (scheme.equals("azure-kms")) return new AzureKms(uri, aad);
    if (scheme.equals("pkcs11")) return new Pkcs11Kms(uri, aad);
    throw new ParquetCryptoRuntimeException(
        URI_PROPERTY + " must be a file:, hcvault:, aws-kms:, gcp-kms:, azure-kms: or pkcs11: URI; for"
            + " other key services, use the data source modcrypt");
  }

  public String wrapKey(byte[] key, String masterKeyId) {
    return (String) asked(key, null, masterKeyId);
  }

  public byte[] unwrapKey(String wrapped, String masterKeyId) {
    byte[] key = (byte[]) asked(null, wrapped, masterKeyId);
    if (key.length != 16 && key.length != 24 && key.length != 32) {
      throw new ParquetCryptoRuntimeException(
          "master key " + Texts.shown(masterKeyId) + ": the unwrapped key is not an AES key");
    }
    return key;
  }

  /** Calls the service at its pace, again while it is unavailable. */
  private Object asked(byte[] key, String wrapped, String masterKeyId) {
    Pace pace = paceOf(service);
    Pace.Effort effort = pace.begin();
    while (true) {
      pace.takeTurn(effort);
      long sent = Pace.time();
      try {
        Object answer = key == null
            ? (Object) service.unwrap(wrapped, masterKeyId)
            : (Object) service.wrap(key, masterKeyId);
        pace.grant();
        return answer;
      } catch (UnavailableException error) {
        pace.waitAfter(error, effort, sent);
      }
    }
  }

  private static Pace paceOf(KeyService service) {
    Pace found = (Pace) PACES.get(service);
    if (found == null) {
      Pace made = new Pace(System.getenv("MODCRYPT_KMS_PATIENCE"));
      found = (Pace) PACES.putIfAbsent(service, made);
      if (found == null) found = made;
    }
    return found;
  }
}

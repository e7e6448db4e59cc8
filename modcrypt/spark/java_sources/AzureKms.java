package modcrypt;

import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A client for a vault of Azure Key Vault or Managed HSM, azure-kms://HOST[/keys/KEY], by its REST
 * API. URIs and wrapped keys are those of modcrypt's Python (modcrypt/kms/services/azure.py).
 */
final class AzureKms implements KeyService {
  private static final String API = "7.4";
  private static final int MAX_WRAPPED = 16 << 10;
  private static final Pattern HOST = Pattern.compile(
      "[a-z0-9-]{1,63}\\.(vault\\.azure\\.net|vault\\.azure\\.cn|vault\\.usgovcloudapi\\.net"
          + "|managedhsm\\.azure\\.net)");
  private static final Pattern NAME = Pattern.compile("[0-9A-Za-z-]{1,127}");
  private static final Pattern VERSION = Pattern.compile("[0-9a-f]{32}");
  private static final Pattern CODE = Pattern.compile("[A-Za-z]{1,40}");

  private final String host;
  private final String algorithm;
  private final Http http;
  private final AzureCredentials credentials;

  AzureKms(String uri, byte[] aad) {
    this(uri, aad, System.getenv(), null);
  }

  /** @param service address that stands in for that of the vault; null for none. */
  public AzureKms(String uri, byte[] aad, Map environment, String service) {
    KmsUri parts = new KmsUri(uri, new String[] {"algorithm"});
    String location = parts.location.startsWith("//")
        ? parts.location.substring(2) : parts.location;
    int at = location.indexOf("/keys/");
    host = at < 0 ? location : location.substring(0, at);
    boolean named = at < 0 || NAME.matcher(location.substring(at + 6)).matches();
    if (!HOST.matcher(host).matches() || !named || !parts.fragment.isEmpty()) {
      throw new ParquetCryptoRuntimeException(
          "the URI of a vault is azure-kms://NAME.vault.azure.net, that of a key in it ends in"
              + " /keys/KEY; hosts end in vault.azure.net, vault.azure.cn,"
              + " vault.usgovcloudapi.net, managedhsm.azure.net");
    }
    algorithm = parts.get("algorithm", "RSA-OAEP-256");
    if (!algorithm.equals("RSA-OAEP-256") && !algorithm.equals("A256KW")) {
      throw new ParquetCryptoRuntimeException(
          "azure-kms: algorithm must be RSA-OAEP-256 or A256KW");
    }
    if (aad.length > 0) {
      throw new ParquetCryptoRuntimeException(
          "Azure Key Vault does not support AAD; remove kms_aad, or use another key service");
    }
    http = new Http("Azure Key Vault at " + host, service == null ? "https://" + host : service,
        new String[0], environment);
    credentials = new AzureCredentials(
        "https://" + host.substring(host.indexOf('.') + 1), environment);
  }

  // --- wrapping ---

  public String wrap(byte[] key, String id) {
    Map answer = asked(id, "", "wrapkey", key); // no version: the newest
    String version = version(answer, id);
    byte[] wrapped = value(answer);
    if (version == null || wrapped == null) throw unlikeVault(id);
    String text = LocalWrap.format(version, wrapped);
    if (text.length() > MAX_WRAPPED) throw unlikeVault(id);
    return text;
  }

  public byte[] unwrap(String wrapped, String id) {
    Map members = wrapped.length() > MAX_WRAPPED ? null : Texts.object(wrapped);
    Object version = members == null ? null : members.get("masterKeyVersion");
    byte[] encrypted = members == null ? null : Texts.base64(members.get("encryptedKey"));
    boolean valid = version instanceof String && VERSION.matcher((String) version).matches();
    if (!valid || encrypted == null) {
      throw new ParquetCryptoRuntimeException(
          "the wrapped key for Azure Key Vault is not {\"masterKeyVersion\":\"<32 hex digits>\","
              + "\"encryptedKey\":\"<base64>\"}");
    }
    Map answer = asked(id, (String) version, "unwrapkey", encrypted);
    byte[] key = value(answer);
    if (key == null || !version.equals(version(answer, id))) throw unlikeVault(id);
    return key;
  }

  private Map asked(String id, String version, String operation, byte[] value) {
    if (!NAME.matcher(id).matches()) { // it may come from a file, and becomes part of a path
      throw new ParquetCryptoRuntimeException(
          "master key " + Texts.shown(id) + ": names of keys in Azure's vaults consist of letters,"
              + " digits and -");
    }
    Map body = new TreeMap();
    body.put("alg", algorithm);
    // Without padding, because managed HSMs have been seen to take padding for bytes of the key.
    body.put("value", Base64.getUrlEncoder().withoutPadding().encodeToString(value));
    String path = "/keys/" + id + "/" + version + "/" + operation + "?api-version=" + API;
    String[] headers = new String[] {
        "Content-Type", "application/json", "Authorization", credentials.token().header()};
    HttpAnswer answer = http.send("POST", path, Texts.json(body), headers);
    if (answer.status != 200) throw refusal(answer, id, operation);
    Map content = answer.json();
    if (content == null) throw unlikeVault(id);
    return content;
  }

  /** Returns the version in an answer's kid; null if that is of another key. */
  private String version(Map answer, String id) {
    String kid = String.valueOf(answer.get("kid"));
    String start = "https://" + host + "/keys/" + id + "/"; // names ignore case
    if (!kid.regionMatches(true, 0, start, 0, start.length())) return null;
    String version = kid.substring(start.length());
    return VERSION.matcher(version).matches() ? version : null;
  }

  private static byte[] value(Map answer) {
    Object text = answer.get("value");
    if (!(text instanceof String)) return null;
    try {
      byte[] value = Base64.getUrlDecoder().decode((String) text);
      return value.length > 0 ? value : null;
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  // --- errors ---

  /** Turns an answer into an error, which repeats only Azure's codes. */
  private ParquetCryptoRuntimeException refusal(HttpAnswer answer, String id, String operation) {
    int status = answer.status;
    String codes = codes(answer);
    String what = "master key " + id + ": Azure Key Vault ";
    String said = what + "answered " + status + codes;
    if (answer.isRedirect()) return unlikeVault(id);
    if (status == 401) {
      credentials.forget();
      return new KeyAccessDeniedException(what + "does not accept the credentials");
    }
    if (status == 404) {
      return new ParquetCryptoRuntimeException(
          said + ": the key, or that version of it, does not exist");
    }
    if (status == 403) {
      boolean disabled = codes.matches(".* (KeyDisabled|KeyExpired|KeyNotYetValid)\\b.*");
      return new KeyAccessDeniedException(said + (disabled
          ? ": the key is disabled, expired or not yet valid"
          : ": the credentials do not permit the use of the key"));
    }
    if (status == 408 || status == 429 || status >= 500) return answer.unavailable(said);
    if (status == 400 && operation.equals("unwrapkey")) {
      return new ParquetCryptoRuntimeException(
          said + ": the wrapped key does not unwrap: altered bytes, another master key, or another"
              + " algorithm");
    }
    return new ParquetCryptoRuntimeException(
        said + ": check that the key's type fits the algorithm");
  }

  /** Returns the codes of an error and its inner error, each after a space. */
  private static String codes(HttpAnswer answer) {
    Map content = answer.json();
    Object error = content == null ? null : content.get("error");
    Object inner = error instanceof Map ? ((Map) error).get("innererror") : null;
    return code(error) + code(inner);
  }

  private static String code(Object error) {
    Object code = error instanceof Map ? ((Map) error).get("code") : null;
    boolean valid = code instanceof String && CODE.matcher((String) code).matches();
    return valid ? " " + code : "";
  }

  private ParquetCryptoRuntimeException unlikeVault(String id) {
    return new ParquetCryptoRuntimeException(
        "master key " + id + ": the answer is not that of vault " + host + " for this key; check"
            + " proxies");
  }
}

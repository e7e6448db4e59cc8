package modcrypt;

import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A client for the transit engine of Vault or OpenBao, hcvault://HOST[:PORT]/MOUNT. URIs, requests
 * and wrapped keys (vault:v1:...) are those of modcrypt's Python (modcrypt/kms/services/vault.py).
 */
final class VaultTransit implements KeyService {
  private static final int MAX_TOKEN = 16 << 10;
  private static final int MAX_WRAPPED = 16 << 10;
  // If the token may, encrypt creates a missing key, but not for an unknown type.
  private static final String NO_KEY_TYPE = "modcrypt-creates-no-keys";
  private static final Pattern NAME = Pattern.compile("\\w(?:[\\w.-]{0,253}\\w)?");
  private static final Pattern LOCATION = Pattern.compile(
      "//([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\])(?::([0-9]{1,5}))?/(.*)");
  private static final Pattern WRAPPED = Pattern.compile(
      "vault:v[1-9][0-9]{0,8}:[A-Za-z0-9+/]+={0,2}");

  private final String address;
  private final String mount;
  private final String namespace;
  private final String tokenPlace;
  private final boolean derived;
  private final byte[] aad;
  private final Map environment;
  private final Set foundDerived = ConcurrentHashMap.newKeySet();
  private final Http http;

  VaultTransit(String uri, byte[] aad) {
    this(uri, aad, System.getenv());
  }

  public VaultTransit(String uri, byte[] aad, Map environment) {
    KmsUri parts = new KmsUri(uri, new String[] {"derived", "namespace", "tls", "token"});
    Matcher found = LOCATION.matcher(parts.location);
    if (!found.matches() || (found.group(2) != null && Integer.parseInt(found.group(2)) > 65535)) {
      throw misspelt();
    }
    String host = found.group(1);
    boolean tls = isOn(parts.get("tls", "on"), "on", "off");
    if (!tls && !Http.isLoopback(host)) {
      throw new ParquetCryptoRuntimeException(
          "hcvault: tls=off is only allowed for loopback addresses: it sends the token unencrypted");
    }
    derived = isOn(parts.get("derived", "false"), "true", "false");
    address = (tls ? "https://" : "http://") + host
        + (found.group(2) == null ? "" : ":" + found.group(2));
    mount = checkedPath(withoutKey(found.group(3)));
    String space = parts.get("namespace", "");
    namespace = space.isEmpty() ? null : checkedPath(space.replaceAll("^/+|/+$", ""));
    tokenPlace = parts.reference("token");
    this.aad = aad;
    http = new Http("Vault at " + where(), address,
        new String[] {"VAULT_CACERT", "BAO_CACERT", "VAULT_CAPATH"}, environment);
    this.environment = environment;
  }

  private static String withoutKey(String path) {
    String[] steps = path.split("/", -1);
    int count = steps.length;
    if (count < 3 || !steps[count - 2].equals("keys")) return path;
    checkedPath(steps[count - 1]);
    return String.join("/", (String[]) Arrays.copyOf(steps, count - 2));
  }

  private static String checkedPath(String path) {
    String[] steps = path.split("/", -1);
    for (int n = 0; n < steps.length; n++) {
      if (!NAME.matcher(steps[n]).matches()) throw misspelt();
    }
    return path;
  }

  private static boolean isOn(String value, String yes, String no) {
    if (!value.equals(yes) && !value.equals(no)) throw misspelt();
    return value.equals(yes);
  }

  private static ParquetCryptoRuntimeException misspelt() {
    return new ParquetCryptoRuntimeException(
        "the URI of a Vault engine must be hcvault://HOST[:PORT]/MOUNT[/keys/NAME], where MOUNT"
            + " and NAME are plain names; with derived=true|false, tls=on|off");
  }

  // --- wrapping ---

  public String wrap(byte[] key, String id) {
    Map body = new TreeMap();
    body.put("plaintext", Base64.getEncoder().encodeToString(key));
    body.put("type", NO_KEY_TYPE);
    String wrapped = transit("encrypt", body, id, "ciphertext");
    if (wrapped.length() > MAX_WRAPPED || !WRAPPED.matcher(wrapped).matches()) throw unlikeVault();
    return wrapped;
  }

  public byte[] unwrap(String wrapped, String id) {
    if (wrapped.length() > MAX_WRAPPED || !WRAPPED.matcher(wrapped).matches()) {
      throw new ParquetCryptoRuntimeException(
          "the wrapped key is not vault:v<version>:<base64>");
    }
    Map body = new TreeMap();
    body.put("ciphertext", wrapped);
    byte[] key = Texts.base64(transit("decrypt", body, id, "plaintext"));
    if (key == null) throw unlikeVault();
    return key;
  }

  private String transit(String verb, Map body, String id, String member) {
    if (!NAME.matcher(id).matches()) { // it may come from a file, and becomes part of a path
      throw new ParquetCryptoRuntimeException(
          "master key " + Texts.shown(id) + ": names of keys in Vault consist of letters, digits,"
              + " _, and . or - in between");
    }
    if (derived) {
      demandDerived(verb, body, id);
      byte[] context = aad.length == 0 ? id.getBytes(StandardCharsets.UTF_8) : aad;
      body.put("context", Base64.getEncoder().encodeToString(context));
    } else if (aad.length > 0) {
      body.put("associated_data", Base64.getEncoder().encodeToString(aad));
    }
    HttpAnswer answer = sent(verb + "/" + id, body);
    if (answer.status != 200) throw refusal(answer, id, verb);
    Object data = content(answer).get("data");
    Object value = data instanceof Map ? ((Map) data).get(member) : null;
    if (!(value instanceof String)) throw unlikeVault();
    return (String) value;
  }

  /** Checks that Vault uses the context: it ignores the context of keys that are not derived. */
  private void demandDerived(String verb, Map body, String id) {
    if (foundDerived.contains(id)) return;
    HttpAnswer answer = sent(verb + "/" + id, body);
    if (answer.status == 200) {
      throw new ParquetCryptoRuntimeException(
          "master key " + id + " is not a derived key: Vault would bind nothing to the AAD."
              + " Remove derived=true from the URI, or use a key that was created as derived");
    }
    if (answer.status != 400 || said(answer).indexOf("missing 'context'") < 0) {
      throw refusal(answer, id, verb);
    }
    foundDerived.add(id);
  }

  // --- requests ---

  private HttpAnswer sent(String path, Map body) {
    List headers = new ArrayList(Arrays.asList(new String[] {
        "Content-Type", "application/json", "X-Vault-Request", "true", "X-Vault-Token", token()}));
    if (namespace != null) {
      headers.add("X-Vault-Namespace");
      headers.add(namespace);
    }
    return http.send("POST", "/v1/" + mount + "/" + path, Texts.json(body),
        (String[]) headers.toArray(new String[0]));
  }

  /** Turns an answer into an error, which never repeats Vault's own text. */
  private ParquetCryptoRuntimeException refusal(HttpAnswer answer, String id, String verb) {
    int status = answer.status;
    String said = said(answer);
    String what = "master key " + id + ": ";
    if (status == 401 || status == 403) {
      // Vault lists the denials of a known token's policies.
      boolean isKnown = said.indexOf("error occurred") >= 0 && said.indexOf("invalid token") < 0;
      return new KeyAccessDeniedException(
          what + "Vault at " + where() + " refuses to " + verb + ": "
              + (isKnown ? "the policies of the token do not permit it"
                  : "it does not know the token (any more): it has expired, was revoked, or its"
                      + " uses (num_uses) are spent; get a new token"));
    }
    boolean unknown = said.indexOf("key not found") >= 0 || said.indexOf("no existing key") >= 0
        || said.indexOf("unknown key type") >= 0;
    if (status == 404 || unknown) {
      return new ParquetCryptoRuntimeException("Vault has no master key " + id + " at " + where());
    }
    if (status >= 500 || status == 412 || status == 429 || status == 472 || status == 473) {
      return answer.unavailable(what + "Vault at " + where() + " answers " + status);
    }
    if (answer.isRedirect()) {
      return new ParquetCryptoRuntimeException(
          "Vault at " + where() + " redirects to another address, which modcrypt does not follow:"
              + " name the active node in the URI");
    }
    if (status == 400 && answer.contains("HTTP request to an HTTPS server")) {
      return new ParquetCryptoRuntimeException(
          "the server at " + where() + " speaks TLS: remove tls=off from the URI");
    }
    if (said.indexOf("too old") >= 0) {
      return new KeyAccessDeniedException(
          what + "the version that wrapped the key is disabled in Vault");
    }
    if (said.indexOf("soft-deleted") >= 0) {
      return new KeyAccessDeniedException(what + "it is disabled (soft-deleted) in Vault");
    }
    if (said.indexOf("missing 'context'") >= 0) {
      return new ParquetCryptoRuntimeException(
          what + "it is a derived key: add derived=true to the URI");
    }
    if (status == 400 && verb.equals("decrypt")) {
      return new ParquetCryptoRuntimeException(
          what + "it does not unwrap the key: altered text, another master key or other AAD; Vault"
              + " does not report which");
    }
    return new ParquetCryptoRuntimeException(
        what + "Vault at " + where() + " answers " + status + " (" + verb + ")");
  }

  private Map content(HttpAnswer answer) {
    Map content = answer.json();
    if (content == null) throw unlikeVault();
    return content;
  }

  private String said(HttpAnswer answer) {
    Map content = answer.json();
    return content == null ? "" : String.valueOf(content.get("errors"));
  }

  private ParquetCryptoRuntimeException unlikeVault() {
    return new ParquetCryptoRuntimeException(
        "no transit engine of Vault answers at " + where());
  }

  private String where() {
    return address.substring(address.indexOf("//") + 2) + "/" + mount;
  }

  // --- token ---

  /** Reads the token, before each request: an agent may have renewed it. */
  private String token() {
    byte[] found = new byte[0];
    if (tokenPlace != null) {
      found = Texts.secret(tokenPlace, MAX_TOKEN, false, "the token for Vault");
    } else {
      String[] places = new String[] {"env:VAULT_TOKEN", "env:BAO_TOKEN", "file:~/.vault-token"};
      for (int n = 0; n < places.length && found.length == 0; n++) {
        if (n == 2 && !Files.isRegularFile(Texts.path("~/.vault-token"))) continue;
        found = Texts.secret(places[n], MAX_TOKEN, false, "the token for Vault");
        if (found.length > 0) checkServer(n == 1);
      }
    }
    String token = new String(found, StandardCharsets.ISO_8859_1).trim();
    if (token.isEmpty()) {
      throw new KeyAccessDeniedException(
          "no token for Vault: set VAULT_TOKEN for driver and executors, or name its place in the"
              + " URI by token=env:NAME or token=file:PATH");
    }
    if (token.length() > MAX_TOKEN || !token.matches("[!-~]+")) {
      throw new KeyAccessDeniedException(
          "the token for Vault is invalid: it contains spaces, or is too long");
    }
    return token;
  }

  /** Checks that an ambient token goes only to the server that the environment says it is for. */
  public void checkServer(boolean isBao) {
    String vault = Texts.variable(environment, "VAULT_ADDR");
    String bao = Texts.variable(environment, "BAO_ADDR");
    String own = isBao ? (bao == null ? vault : bao) : (vault == null ? bao : vault);
    if (own == null || server(address).equals(server(own))) return;
    throw new KeyAccessDeniedException(
        "the token of Vault in the environment is for the server in VAULT_ADDR or BAO_ADDR, and is"
            + " not sent to " + where() + ": name the place of a token for this server by"
            + " token=env:NAME or token=file:PATH in the URI");
  }

  /** Returns host and port of an address; of an invalid one, what no valid one has. */
  private static String server(String address) {
    try {
      URI parts = new URI(address);
      if (parts.getHost() == null) return address;
      int usual = "http".equals(parts.getScheme()) ? 80 : 443;
      return parts.getHost().toLowerCase(Locale.ROOT)
          + ":" + (parts.getPort() < 0 ? usual : parts.getPort());
    } catch (URISyntaxException error) {
      return address;
    }
  }
}

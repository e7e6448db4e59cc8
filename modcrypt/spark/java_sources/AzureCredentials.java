package modcrypt;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/**
 * Azure's credentials for one resource: a client secret in the environment, a workload identity, or
 * the managed identity of this machine.
 */
final class AzureCredentials extends TokenCredentials {
  private static final String AUTHORITY = "https://login.microsoftonline.com";
  private static final String METADATA = "http://169.254.169.254";
  private static final int MAX_TOKEN = 64 << 10;

  private final String resource;

  /** @param resource what the token is for, such as https://vault.azure.net. */
  AzureCredentials(String resource, Map environment) {
    super(environment);
    this.resource = resource;
  }

  AccessToken fetched() {
    String client = get("AZURE_CLIENT_ID");
    String secret = get("AZURE_CLIENT_SECRET");
    String file = get("AZURE_FEDERATED_TOKEN_FILE");
    boolean named = client != null && get("AZURE_TENANT_ID") != null;
    if (named && secret != null) {
      return granted(new String[] {
          "grant_type", "client_credentials", "client_id", client, "scope", resource + "/.default",
          "client_secret", secret}, "AZURE_CLIENT_SECRET");
    }
    if (named && file != null) {
      return granted(new String[] {
          "grant_type", "client_credentials", "client_id", client, "scope", resource + "/.default",
          "client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
          "client_assertion", assertion(file)}, "AZURE_FEDERATED_TOKEN_FILE");
    }
    return fromMetadata(client);
  }

  /** Reads the token of a workload, each time: Kubernetes renews it. */
  private static String assertion(String file) {
    byte[] read = Texts.secret("file:" + file, MAX_TOKEN, false, "AZURE_FEDERATED_TOKEN_FILE");
    String text = new String(read, StandardCharsets.ISO_8859_1).trim();
    Arrays.fill(read, (byte) 0);
    if (text.matches("[!-~]+") && text.length() <= MAX_TOKEN) return text;
    throw new KeyAccessDeniedException(
        "the file of AZURE_FEDERATED_TOKEN_FILE, " + file + ", contains no token");
  }

  private AccessToken granted(String[] form, String source) {
    String tenant = get("AZURE_TENANT_ID");
    if (!tenant.matches("[0-9A-Za-z.-]{1,253}") || tenant.startsWith(".")) {
      throw new KeyAccessDeniedException("AZURE_TENANT_ID is not the id or domain of a tenant");
    }
    String host = get("AZURE_AUTHORITY_HOST");
    if (host != null && host.indexOf("://") < 0) host = "https://" + host;
    String address = host == null ? AUTHORITY : Http.checked(host, "AZURE_AUTHORITY_HOST");
    Http http = new Http("Microsoft's token service", address, new String[0], environment);
    String path = "/" + tenant + "/oauth2/v2.0/token";
    return granted(http, path, form, "Microsoft's token service", source);
  }

  private AccessToken fromMetadata(String client) {
    String host = get("AZURE_POD_IDENTITY_AUTHORITY_HOST");
    String address =
        host == null ? METADATA : Http.checked(host, "AZURE_POD_IDENTITY_AUTHORITY_HOST");
    Http http = new Http("Azure's metadata service", address, new String[0], environment, 3);
    String path = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource="
        + URLEncoder.encode(resource, StandardCharsets.UTF_8)
        + (client == null ? "" : "&client_id=" + URLEncoder.encode(client, StandardCharsets.UTF_8));
    try {
      return accepted(http.send("GET", path, null, new String[] {"Metadata", "true"}),
          "Azure's metadata service", "the managed identity of this machine");
    } catch (UnavailableException error) {
      throw new UnavailableException(
          "Azure Key Vault: no credentials in the environment, and no metadata service answers: set"
              + " AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET for driver and"
              + " executors");
    }
  }

  /** Adds what IMDS says while it starts. */
  boolean isAway(int status) {
    return status == 404 || status == 410 || super.isAway(status);
  }
}

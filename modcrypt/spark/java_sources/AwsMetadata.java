package modcrypt;

import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/** The temporary access key of a container (ECS, EKS) or of an EC2 instance (IMDSv2). */
final class AwsMetadata {
  private static final String CONTAINER = "http://169.254.170.2";
  private static final String INSTANCE = "http://169.254.169.254";
  private static final String ROLES = "/latest/meta-data/iam/security-credentials/";
  private static final int CONTAINER_SECONDS = 2;
  private static final int INSTANCE_SECONDS = 1; // elsewhere, nothing answers
  private static final int MAX_TOKEN = 16 << 10;
  private static final Pattern ADDRESS = Pattern.compile(
      "(https?)://([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?(/.*)?");
  private static final Pattern PATH = Pattern.compile(
      "/(?:[\\w/.~:@?&=+,;$!*'()-]|%[0-9A-Fa-f]{2})*");
  private static final Pattern ROLE = Pattern.compile("[\\w+=,.@-]{1,128}");
  private static final String CREDENTIALS = "AWS's container credentials";
  private static final String METADATA = "AWS's instance metadata";

  private AwsMetadata() {}

  /** Returns a new key; null if instance metadata is disabled. */
  static AwsKey key(Map environment) {
    String relative = Texts.variable(environment, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    String full = Texts.variable(environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (relative != null) return fromContainer(CONTAINER, relative, environment);
    if (full != null) return fromContainer(full, environment);
    if (AwsEndpoint.isTrue(environment, "AWS_EC2_METADATA_DISABLED")) return null;
    return fromInstance(environment);
  }

  // --- containers ---

  private static AwsKey fromContainer(String uri, Map environment) {
    Matcher parts = ADDRESS.matcher(uri);
    boolean valid = parts.matches() && (parts.group(1).equals("https") || isOfContainer(parts.group(2)));
    if (!valid) {
      throw new KeyAccessDeniedException(
          "AWS_CONTAINER_CREDENTIALS_FULL_URI must be an https: address, or an http: address of"
              + " loopback or of AWS's container agents");
    }
    String path = parts.group(4) == null ? "/" : parts.group(4);
    return fromContainer(uri.substring(0, uri.length() - (parts.group(4) == null ? 0 : path.length())),
        path, environment);
  }

  private static boolean isOfContainer(String host) {
    return Http.isLoopback(host) || host.equals("169.254.170.2") || host.equals("169.254.170.23")
        || host.equals("[fd00:ec2::23]");
  }

  private static AwsKey fromContainer(String address, String path, Map environment) {
    if (!PATH.matcher(path).matches()) {
      throw new KeyAccessDeniedException(
          "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI has an invalid path");
    }
    Http http = new Http(CREDENTIALS, address, AwsEndpoint.AUTHORITIES, environment,
        CONTAINER_SECONDS);
    String token = authorization(environment);
    String[] headers =
        token == null ? new String[0] : new String[] {"Authorization", token};
    return parsed(accepted(http.send("GET", path, null, headers), CREDENTIALS), CREDENTIALS);
  }

  private static String authorization(Map environment) {
    String file = Texts.variable(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    String token = Texts.variable(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
    if (file != null) {
      token = Texts.utf8(Texts.secret("file:" + file, MAX_TOKEN, false,
          "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    } else if (token == null) {
      return null;
    }
    if (token != null && token.length() <= MAX_TOKEN && token.matches("[ -~]+")) return token;
    throw new KeyAccessDeniedException(
        "the token in AWS_CONTAINER_AUTHORIZATION_TOKEN or its _FILE is not that of a header");
  }

  // --- instances ---

  private static AwsKey fromInstance(Map environment) {
    String named = Texts.variable(environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    String address = named == null || named.replaceAll("/$", "").equals(INSTANCE) ? INSTANCE
        : named.matches("http://\\[fd00:ec2::254\\]/?") ? "http://[fd00:ec2::254]"
        : Http.checked(named, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    Http http = new Http(METADATA, address, new String[0], environment, INSTANCE_SECONDS);
    try {
      String token = line(http.send("PUT", "/latest/api/token", null,
          new String[] {"X-aws-ec2-metadata-token-ttl-seconds", "21600"}), "[!-~]{1,1024}");
      String[] headers = new String[] {"X-aws-ec2-metadata-token", token};
      String role = line(http.send("GET", ROLES, null, headers), ROLE.pattern());
      return parsed(accepted(http.send("GET", ROLES + role, null, headers), METADATA), METADATA);
    } catch (UnavailableException error) {
      throw new UnavailableException(
          "no credentials for AWS in variables and files, and no instance metadata: set"
              + " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, for driver and"
              + " executors, or use a role");
    }
  }

  private static String line(HttpAnswer answer, String pattern) {
    String text = Texts.utf8(accepted(answer, METADATA).body);
    if (text != null && text.trim().matches(pattern)) return text.trim();
    throw refused(METADATA, answer);
  }

  // --- answers ---

  private static HttpAnswer accepted(HttpAnswer answer, String who) {
    if (answer.status == 429 || answer.status >= 500) {
      throw new UnavailableException(who + " answers " + answer.status);
    }
    if (answer.status == 200) return answer;
    throw refused(who, answer);
  }

  private static AwsKey parsed(HttpAnswer answer, String who) {
    AwsKey key = AwsKey.temporary(answer.text("AccessKeyId"), answer.text("SecretAccessKey"),
        answer.text("Token"), answer.text("Expiration"));
    if (key == null) throw refused(who, answer);
    return key;
  }

  private static KeyAccessDeniedException refused(String who, HttpAnswer answer) {
    return new KeyAccessDeniedException(
        who + " gives no access key (" + answer.status + "): has a role been assigned?");
  }
}

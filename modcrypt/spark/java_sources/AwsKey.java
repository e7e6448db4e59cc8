package modcrypt;

import java.time.DateTimeException;
import java.time.Instant;

/** An access key of AWS, of which no text form exists. */
final class AwsKey {
  private static final long REFRESH_SECONDS = 300; // AWS renews keys at least that long before

  final String id;
  final String secret;
  final String token; // of a session; null for a permanent key
  private final Instant expires; // null for never

  AwsKey(String id, String secret, String token, Instant expires) {
    this.id = id;
    this.secret = secret;
    this.token = token == null || token.isEmpty() ? null : token;
    this.expires = expires;
  }

  /** Whether the key will not expire within the next minutes. */
  boolean isFresh() {
    return expires == null || Instant.now().plusSeconds(REFRESH_SECONDS).isBefore(expires);
  }

  /** Returns a temporary key; null if a part is missing or malformed. */
  static AwsKey temporary(String id, String secret, String token, String expires) {
    if (token == null || expires == null) return null;
    try {
      AwsKey key = new AwsKey(id, secret, token, Instant.parse(expires));
      return key.isWellFormed() ? key : null;
    } catch (DateTimeException error) {
      return null;
    }
  }

  /** Whether the key fits into the headers of a request. */
  boolean isWellFormed() {
    return id != null && id.matches("\\w{1,128}") && secret != null && secret.matches("[!-~]{1,256}")
        && (token == null || token.matches("[!-~]{1,16384}"));
  }
}

package modcrypt;

import java.time.DateTimeException;
import java.time.Instant;

/** An access key of AWS, of which no text form exists. */
final class AwsKey {
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

  /** Whether the key can sign for at least so many seconds. */
  boolean lasts(long seconds) {
    return expires == null || Instant.now().plusSeconds(seconds).isBefore(expires);
  }

  /** Returns the key of a service's answer; null if a part is missing or malformed. */
  static AwsKey of(String id, String secret, String token, String expires) {
    try {
      AwsKey key = new AwsKey(id, secret, token, expires == null ? null : Instant.parse(expires));
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

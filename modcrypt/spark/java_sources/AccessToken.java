package modcrypt;

import java.time.Instant;
import java.util.Map;

/** An OAuth access token, of which no text form exists. */
final class AccessToken {
  private static final long REFRESH_SECONDS = 240; // clouds renew tokens about that long before

  private final String text;
  private final Instant expires;

  private AccessToken(String text, Instant expires) {
    this.text = text;
    this.expires = expires;
  }

  /** Returns the token of an answer; null if the answer has another form. */
  static AccessToken of(HttpAnswer answer) {
    Map members = answer.status == 200 ? answer.json() : null;
    Object text = members == null ? null : members.get("access_token");
    String seconds = members == null ? "" : String.valueOf(members.get("expires_in"));
    boolean valid = text instanceof String && ((String) text).matches("[!-~]{1,65536}")
        && seconds.matches("[0-9]{1,8}");
    if (!valid) return null;
    return new AccessToken((String) text, Instant.now().plusSeconds(Long.parseLong(seconds)));
  }

  boolean isFresh() {
    return Instant.now().plusSeconds(REFRESH_SECONDS).isBefore(expires);
  }

  /** Returns the value of the header Authorization. */
  String header() {
    return "Bearer " + text;
  }
}

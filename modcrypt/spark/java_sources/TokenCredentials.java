package modcrypt;

import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/** A cloud's credentials, exchanged for access tokens that are used until they nearly expire. */
abstract class TokenCredentials {
  final Map environment;
  private AccessToken token;

  TokenCredentials(Map environment) {
    this.environment = environment;
  }

  synchronized AccessToken token() {
    if (token == null || !token.isFresh()) token = fetched();
    return token;
  }

  synchronized void forget() {
    token = null;
  }

  abstract AccessToken fetched();

  /** Returns a variable of the environment; null if it is missing or empty. */
  String get(String name) {
    return Texts.variable(environment, name);
  }

  /** Sends a form to a token service; the errors name the service and whose token it is. */
  AccessToken granted(Http http, String path, String[] form, String who, String whose) {
    String[] headers = new String[] {"Content-Type", "application/x-www-form-urlencoded"};
    return accepted(http.send("POST", path, Texts.form(form), headers), who, whose);
  }

  AccessToken accepted(HttpAnswer answer, String who, String whose) {
    if (isAway(answer.status)) {
      throw new UnavailableException(who + " answers " + answer.status);
    }
    AccessToken token = AccessToken.of(answer);
    if (token != null) return token;
    throw new KeyAccessDeniedException(
        who + " gives no token for " + whose + " (" + answer.status + ")");
  }

  /** Returns whether a status means that a token service should be asked again later. */
  boolean isAway(int status) {
    return status == 429 || status >= 500;
  }
}

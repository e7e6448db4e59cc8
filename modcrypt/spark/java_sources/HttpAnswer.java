package modcrypt;

import java.util.Map;

/** The status and body of an answer. */
final class HttpAnswer {
  final int status;
  final byte[] body;

  HttpAnswer(int status, byte[] body) {
    this.status = status;
    this.body = body;
  }

  /** Returns the JSON object in the body; null if it is anything else. */
  Map json() {
    return Texts.object(body);
  }

  /** Returns a text of the JSON object in the body; null if there is none. */
  String text(String member) {
    Map members = json();
    Object value = members == null ? null : members.get(member);
    return value instanceof String ? (String) value : null;
  }

  boolean isRedirect() {
    return status >= 300 && status < 400;
  }
}

package modcrypt;

import java.net.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.Map;

/** The status and body of an answer. */
final class HttpAnswer {
  final int status;
  final byte[] body;
  final long retryAfter; // milliseconds that the service asks to wait; -1 if it does not

  HttpAnswer(int status, byte[] body, HttpHeaders headers) {
    this.status = status;
    this.body = body;
    retryAfter = retryAfter(headers);
  }

  private static long retryAfter(HttpHeaders headers) {
    String millis = header(headers, "retry-after-ms");
    if (millis.matches("[0-9]{1,9}")) return Long.parseLong(millis);
    String text = header(headers, "retry-after");
    if (text.matches("[0-9]{1,9}")) return Long.parseLong(text) * 1000;
    try {
      long until = ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME)
          .toInstant().toEpochMilli();
      return Math.max(0, until - System.currentTimeMillis());
    } catch (DateTimeParseException error) {
      return -1;
    } catch (ArithmeticException error) {
      return -1;
    }
  }

  private static String header(HttpHeaders headers, String name) {
    String text = (String) headers.firstValue(name).orElse("");
    return text.length() > 64 ? "" : text.trim();
  }

  /** Returns the error for an answer of a service that is unavailable or throttles. */
  UnavailableException unavailable(String message) {
    return new UnavailableException(message, status == 429, retryAfter);
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

  boolean contains(String text) {
    return new String(body, StandardCharsets.ISO_8859_1).indexOf(text) >= 0;
  }

  boolean isRedirect() {
    return status >= 300 && status < 400;
  }
}

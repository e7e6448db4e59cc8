package modcrypt;

import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Signatures of requests to AWS, version 4 (AWS4-HMAC-SHA256), for a POST to the path /. */
final class AwsSignature {
  private static final DateTimeFormatter TIME =
      DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
  private static final char[] DIGITS = "0123456789abcdef".toCharArray();

  private AwsSignature() {}

  /**
   * Returns the headers of a signed request, name, value, name, value.
   *
   * @param more headers to sign besides Host and the date, by their names in lower case.
   */
  static String[] headers(
      AwsKey key, String region, String service, String address, Map more, byte[] body) {
    String time = TIME.format(Instant.now());
    Map headers = new TreeMap(more);
    headers.put("host", URI.create(address).getAuthority());
    headers.put("x-amz-date", time);
    if (key.token != null) headers.put("x-amz-security-token", key.token);
    String names = String.join(";", headers.keySet());
    String scope = time.substring(0, 8) + "/" + region + "/" + service + "/aws4_request";
    String text = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n"
        + hex(digest(bytes("POST\n/\n\n" + canonical(headers) + "\n" + names + "\n"
            + hex(digest(body)))));
    byte[] signer = bytes("AWS4" + key.secret);
    String[] steps = scope.split("/");
    for (int n = 0; n < steps.length; n++) signer = mac(signer, steps[n]);
    headers.put("authorization", "AWS4-HMAC-SHA256 Credential=" + key.id + "/" + scope
        + ", SignedHeaders=" + names + ", Signature=" + hex(mac(signer, text)));
    headers.remove("host"); // which the HTTP client itself sends
    return listed(headers);
  }

  private static String canonical(Map headers) {
    StringBuilder text = new StringBuilder();
    Iterator names = headers.keySet().iterator();
    while (names.hasNext()) {
      String name = (String) names.next();
      text.append(name).append(':').append((String) headers.get(name)).append('\n');
    }
    return text.toString();
  }

  private static String[] listed(Map headers) {
    List list = new ArrayList();
    Iterator names = headers.keySet().iterator();
    while (names.hasNext()) {
      Object name = names.next();
      list.add(name);
      list.add(headers.get(name));
    }
    return (String[]) list.toArray(new String[0]);
  }

  private static byte[] digest(byte[] data) {
    try {
      return MessageDigest.getInstance("SHA-256").digest(data);
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException("this JVM lacks SHA-256");
    }
  }

  private static byte[] mac(byte[] key, String text) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      return mac.doFinal(bytes(text));
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException("this JVM lacks HmacSHA256");
    }
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static String hex(byte[] data) {
    StringBuilder text = new StringBuilder();
    for (int n = 0; n < data.length; n++) {
      text.append(DIGITS[data[n] >> 4 & 15]).append(DIGITS[data[n] & 15]);
    }
    return text.toString();
  }
}

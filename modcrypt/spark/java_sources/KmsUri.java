package modcrypt;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The parts of a key service's URI, as in Python: scheme:location[?query][#fragment]. */
final class KmsUri {
  final String location;
  final String fragment; // as it is spelt
  private final Map query = new HashMap();

  KmsUri(String uri, String[] allowed) {
    String rest = uri.substring(uri.indexOf(':') + 1);
    String[] halves = cut(rest, '#');
    fragment = halves[1];
    String[] parts = cut(halves[0], '?');
    location = parts[0];
    List names = Arrays.asList(allowed);
    String[] pairs = parts[1].isEmpty() ? new String[0] : parts[1].split("&", -1);
    for (int n = 0; n < pairs.length; n++) {
      String[] pair = cut(pairs[n], '=');
      String value = Texts.unquote(pair[1]);
      if (value == null || !names.contains(pair[0]) || query.put(pair[0], value) != null) {
        // The message does not repeat the value: it may be a secret in the wrong place.
        throw new ParquetCryptoRuntimeException(
            "the query of modcrypt.kms.uri is invalid: it takes NAME=VALUE, each name once: "
                + String.join(", ", allowed));
      }
    }
  }

  /** Returns a value of the query, or a default for a missing one. */
  String get(String name, String missing) {
    String value = (String) query.get(name);
    return value == null ? missing : value;
  }

  /** Returns the reference to a secret, env:NAME or file:PATH; null if there is none. */
  String reference(String name) {
    String value = get(name, null);
    if (value != null && !Texts.isReference(value)) {
      throw new ParquetCryptoRuntimeException(
          "modcrypt.kms.uri: " + name + "= must be env:NAME or file:PATH, not the secret itself");
    }
    return value;
  }

  private static String[] cut(String text, char separator) {
    int at = text.indexOf(separator);
    if (at < 0) return new String[] {text, ""};
    return new String[] {text.substring(0, at), text.substring(at + 1)};
  }
}

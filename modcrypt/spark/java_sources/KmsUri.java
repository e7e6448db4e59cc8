package modcrypt;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The parts of a key service's URI, as in Python: scheme:location[?query][#fragment]. */
final class KmsUri {
  final String location;
  private final Map query = new HashMap();

  KmsUri(String uri, String[] allowed) {
    String rest = uri.substring(uri.indexOf(':') + 1);
    String whole = cut(rest, '#')[0];
    String[] parts = cut(whole, '?');
    location = parts[0];
    List names = Arrays.asList(allowed);
    String[] pairs = parts[1].isEmpty() ? new String[0] : parts[1].split("&", -1);
    for (int n = 0; n < pairs.length; n++) {
      String[] pair = cut(pairs[n], '=');
      String value = Texts.unquote(pair[1]);
      if (value == null || !names.contains(pair[0]) || query.put(pair[0], value) != null) {
        // What was given is not repeated: it may be a secret in a place where none belongs.
        throw new ParquetCryptoRuntimeException(
            "modcrypt.kms.uri takes, once each and as NAME=VALUE, " + String.join(", ", allowed));
      }
    }
  }

  /** Gives a member of the query, or what stands for a missing one. */
  String get(String name, String missing) {
    String value = (String) query.get(name);
    return value == null ? missing : value;
  }

  /** Gives the place of a secret, env:NAME or file:PATH; null if none is named. */
  String reference(String name) {
    String value = get(name, null);
    if (value != null && !Texts.isReference(value)) {
      throw new ParquetCryptoRuntimeException(
          "modcrypt.kms.uri: " + name + "= takes env:NAME or file:PATH, never the secret itself");
    }
    return value;
  }

  private static String[] cut(String text, char separator) {
    int at = text.indexOf(separator);
    if (at < 0) return new String[] {text, ""};
    return new String[] {text.substring(0, at), text.substring(at + 1)};
  }
}

package modcrypt;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** A PKCS#11 URI (RFC 7512), as modcrypt/kms/services/pkcs11_uri.py parses it. */
final class Pkcs11Uri {
  /** Names of traits of a token in the URI, each followed by its name in Java's description. */
  static final String[] TRAITS = new String[] {
      "token", "label", "manufacturer", "manufacturerID", "model", "model",
      "serial", "serialNumber"};
  private static final String[] PATH = new String[] {
      "token", "manufacturer", "model", "serial", "slot-id", "object", "id", "type"};
  private static final String[] QUERY = new String[] {"module-path", "pin-source"};

  final Map path;
  final String module;
  final boolean isNamed; // whether the environment names the module, not only the URI
  final String pinSource;

  Pkcs11Uri(String uri, Map environment) {
    String rest = uri.substring(uri.indexOf(':') + 1);
    int mark = rest.indexOf('?');
    path = attributes(mark < 0 ? rest : rest.substring(0, mark), ";", PATH);
    Map query = attributes(mark < 0 ? "" : rest.substring(mark + 1), "&", QUERY);
    if (path.containsKey("type") && !path.get("type").equals("secret-key")) {
      throw invalid("type must be secret-key, the type of master keys");
    }
    if (path.containsKey("id")) {
      throw invalid("remove id=: in the JVM, only labels identify keys, and each must be unique");
    }
    String slot = (String) path.get("slot-id");
    if (slot != null && !slot.matches("[0-9]{1,20}")) {
      throw invalid("slot-id must be a decimal number");
    }
    Object named = query.containsKey("module-path")
        ? query.get("module-path") : environment.get("MODCRYPT_PKCS11_MODULE");
    module = named == null ? "" : (String) named;
    if (!module.matches("/[\\w/.+@:~-]+")) { // it becomes part of the provider's configuration
      throw invalid("the PKCS#11 module is missing, has no absolute path, or has a path with other"
          + " characters than letters, digits and /_.+@:~-: set module-path in the URI, or"
          + " MODCRYPT_PKCS11_MODULE");
    }
    isNamed = module.equals(environment.get("MODCRYPT_PKCS11_MODULE"));
    pinSource = query.containsKey("pin-source")
        ? (String) query.get("pin-source") : "env:MODCRYPT_PKCS11_PIN";
    if (!Texts.isReference(pinSource)) throw invalid("pin-source must be file:PATH or env:NAME");
  }

  /** Parses one half of the URI; no message repeats a value. */
  private static Map attributes(String part, String separator, String[] allowed) {
    Map values = new HashMap();
    List names = Arrays.asList(allowed);
    String[] pairs = part.isEmpty() ? new String[0] : part.split(separator, -1);
    for (int n = 0; n < pairs.length; n++) {
      int at = pairs[n].indexOf('=');
      String name = at < 0 ? pairs[n] : pairs[n].substring(0, at);
      if (name.equals("pin-value")) {
        throw invalid("remove pin-value, because URIs appear in logs, process lists and histories;"
            + " use pin-source=file:PATH or pin-source=env:NAME");
      }
      if (at < 0 || !names.contains(name)) {
        throw invalid("attributes between '" + separator + "' must be NAME=VALUE with a NAME of "
            + String.join(", ", allowed) + "; attribute " + (values.size() + 1) + " is not");
      }
      String value = pairs[n].substring(at + 1);
      if (value.replaceAll("%[0-9A-Fa-f]{2}", "").indexOf('%') >= 0) {
        throw invalid(name + " contains a % without two hex digits after it");
      }
      String decoded = Texts.unquote(value);
      if (decoded == null) throw invalid(name + " is not UTF-8");
      if (values.put(name, decoded) != null) throw invalid(name + " is repeated");
    }
    return values;
  }

  private static ParquetCryptoRuntimeException invalid(String why) {
    return new ParquetCryptoRuntimeException("PKCS#11 URI: " + why);
  }
}

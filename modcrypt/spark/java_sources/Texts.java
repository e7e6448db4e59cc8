package modcrypt;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** Strict parsing of text from URIs, files and variables; no error repeats the text. */
final class Texts {
  static final int MAX_SHOWN = 80;

  private static final ObjectMapper MAPPER = new ObjectMapper();

  static {
    MAPPER.configure(JsonParser.Feature.STRICT_DUPLICATE_DETECTION, true);
    MAPPER.configure(DeserializationFeature.FAIL_ON_TRAILING_TOKENS, true);
  }

  private Texts() {}

  /** Returns a variable of an environment; null if it is missing or empty. */
  static String variable(Map environment, String name) {
    String value = (String) environment.get(name);
    return value == null || value.isEmpty() ? null : value;
  }

  /** Parses a JSON object; returns null for anything else, and for duplicate members. */
  static Map object(byte[] data) {
    String text = utf8(data);
    return text == null ? null : object(text);
  }

  static Map object(String text) {
    try {
      Object value = MAPPER.readValue(text, Object.class);
      return value instanceof Map ? (Map) value : null;
    } catch (IOException error) { // its message contains some of the text
      return null;
    }
  }

  /** Parses a JSON list of strings; returns null for anything else. */
  static List list(String text) {
    try {
      Object value = MAPPER.readValue(text, Object.class);
      if (!(value instanceof List)) return null;
      for (Object member : (List) value) {
        if (!(member instanceof String)) return null;
      }
      return (List) value;
    } catch (IOException error) { // its message contains some of the text
      return null;
    }
  }

  static byte[] json(Map value) {
    try {
      return MAPPER.writeValueAsBytes(value);
    } catch (IOException error) {
      throw new IllegalStateException("cannot encode JSON");
    }
  }

  /** Encodes the fields of a form, which are name, value, name, value. */
  static byte[] form(String[] fields) {
    StringBuilder text = new StringBuilder();
    for (int n = 0; n < fields.length; n++) {
      if (n > 0) text.append(n % 2 == 0 ? '&' : '=');
      text.append(URLEncoder.encode(fields[n], StandardCharsets.UTF_8));
    }
    return text.toString().getBytes(StandardCharsets.US_ASCII);
  }

  /** Decodes UTF-8; returns null for anything else. */
  static String utf8(byte[] data) {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString();
    } catch (CharacterCodingException error) {
      return null;
    }
  }

  /** Decodes canonical base64; returns null for anything else. */
  static byte[] base64(Object text) {
    if (!(text instanceof String)) return null;
    try {
      byte[] data = Base64.getDecoder().decode((String) text);
      boolean same = Base64.getEncoder().encodeToString(data).equals(text);
      return same && data.length > 0 ? data : null;
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  static String toBase64(byte[] data) {
    return Base64.getEncoder().encodeToString(data);
  }

  /** Resolves percent-escapes; returns null if the result is not UTF-8. */
  static String unquote(String text) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int at = 0; at < text.length(); ) {
      int hex = text.charAt(at) == '%' ? hex(text, at + 1) : -1;
      if (hex >= 0) {
        out.write(hex);
        at += 3;
      } else {
        int end = text.offsetByCodePoints(at, 1);
        byte[] raw = text.substring(at, end).getBytes(StandardCharsets.UTF_8);
        out.write(raw, 0, raw.length);
        at = end;
      }
    }
    return utf8(out.toByteArray());
  }

  private static int hex(String text, int at) {
    if (at + 2 > text.length()) return -1;
    int high = Character.digit(text.charAt(at), 16);
    int low = Character.digit(text.charAt(at + 1), 16);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
  }

  /** Returns a path, in which a leading ~ stands for the home folder. */
  static Path path(String text) {
    try {
      boolean home = text.startsWith("~/");
      return Paths.get(home ? System.getProperty("user.home") + text.substring(1) : text);
    } catch (InvalidPathException error) { // with characters that file names of this locale lack
      throw new ParquetCryptoRuntimeException(
          "the locale of this JVM lacks characters of a path in modcrypt.kms.uri; set LC_ALL=C.UTF-8");
    }
  }

  /**
   * Reads the secret at env:NAME or file:PATH.
   *
   * @param firstLine whether to read only the first line of a file.
   * @return the bytes of the secret; empty if it does not exist or is empty.
   */
  static byte[] secret(String reference, int limit, boolean firstLine, String what) {
    String where = reference.substring(reference.indexOf(':') + 1);
    if (reference.startsWith("env:")) return variable(where, what);
    Path path = path(where);
    byte[] read = new byte[0];
    try {
      InputStream in = Files.newInputStream(path);
      try {
        read = in.readNBytes(limit + 2);
      } finally {
        in.close();
      }
    } catch (IOException error) {
      throw new KeyAccessDeniedException(
          what + ": the file " + path + " can't be read: " + error.getClass().getSimpleName());
    }
    int end = read.length;
    for (int at = 0; firstLine && at < end; at++) {
      if (read[at] == '\n') end = at;
    }
    while (end > 0 && (read[end - 1] == '\n' || read[end - 1] == '\r')) end--;
    byte[] secret = Arrays.copyOf(read, end);
    Arrays.fill(read, (byte) 0);
    return secret;
  }

  private static byte[] variable(String name, String what) {
    String value = System.getenv(name);
    if (value == null || value.isEmpty()) return new byte[0];
    if (value.indexOf('\uFFFD') >= 0) {
      throw new KeyAccessDeniedException(
          what + ": the locale of this JVM lacks characters of the variable " + name + "; set"
              + " LC_ALL=C.UTF-8, or store it in a file and use file:PATH");
    }
    String charset = System.getProperty("sun.jnu.encoding", "UTF-8");
    return value.getBytes(Charset.forName(charset));
  }

  static boolean isReference(String text) {
    return (text.startsWith("env:") && text.length() > 4)
        || (text.startsWith("file:") && text.length() > 5);
  }

  /** Returns whether a text has no control characters, and no blanks but spaces. */
  static boolean isPrintable(String text) {
    for (int at = 0; at < text.length(); ) {
      int point = text.codePointAt(at);
      int kind = Character.getType(point);
      boolean blank = kind == Character.SPACE_SEPARATOR && point != ' ';
      boolean hidden = kind == Character.CONTROL || kind == Character.FORMAT
          || kind == Character.SURROGATE || kind == Character.PRIVATE_USE
          || kind == Character.UNASSIGNED || kind == Character.LINE_SEPARATOR
          || kind == Character.PARAGRAPH_SEPARATOR;
      if (blank || hidden) return false;
      at += Character.charCount(point);
    }
    return true;
  }

  /** Returns the dotted name of a column's path. */
  static String dotted(String[] path) {
    return dotted(path, path.length);
  }

  /** Returns the dotted name of the first members of a column's path. */
  static String dotted(String[] path, int length) {
    return String.join(".", Arrays.asList(path).subList(0, length));
  }

  /** Returns an id that is safe to show: it may come from a hostile file. */
  static String shown(String id) {
    StringBuilder text = new StringBuilder();
    for (int at = 0; at < Math.min(id.length(), MAX_SHOWN); at++) {
      char character = id.charAt(at);
      text.append(Character.isISOControl(character) ? '?' : character);
    }
    return text.toString();
  }
}

package modcrypt;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * AAD prefixes that contain a file's path inside its dataset, {path}, or its name, {name}.
 *
 * modcrypt/parquet/crypto/path_prefix.py describes them.
 */
final class PathPrefix {
  private static final String ROOT = "modcrypt.root";

  private static final String PATH = "{path}";
  private static final String NAME = "{name}";

  private PathPrefix() {}

  /** Returns the prefix of the file at a path; null if the policy has none. */
  static byte[] of(Policy policy, Path file, Configuration configuration) {
    if (policy == null || policy.prefix == null) return null;
    return of(policy.prefix, file, null, configuration);
  }

  /** Returns the prefix of a file that is written to a path, which may be a temporary one. */
  static byte[] ofWritten(Policy policy, Path path, Configuration configuration) {
    if (policy.prefix == null) return null;
    if (!policy.prefix.contains(PATH) && !policy.prefix.contains(NAME)) {
      return of(policy.prefix, path, null, configuration);
    }
    WrittenPath written = WrittenPath.of(path, configuration);
    return of(policy.prefix, written.file, written.dataset, configuration);
  }

  private static byte[] of(String template, Path file, Path dataset, Configuration configuration) {
    String path = template.contains(PATH) ? rooted(file, dataset, configuration) : null;
    String name = file == null ? null : file.getName();
    return filled(template, path, name).getBytes(StandardCharsets.UTF_8);
  }

  /** Inserts path and name; either may contain text that looks like a placeholder. */
  private static String filled(String template, String path, String name) {
    StringBuilder text = new StringBuilder();
    for (int at = 0; at < template.length(); ) {
      boolean isPath = template.startsWith(PATH, at);
      if (isPath || template.startsWith(NAME, at)) {
        text.append(isPath ? path : name);
        at += PATH.length();
      } else {
        text.append(template.charAt(at++));
      }
    }
    return text.toString();
  }

  /** Returns a file's path inside the root, by default the dataset that is written. */
  private static String rooted(Path file, Path dataset, Configuration configuration) {
    String named = configuration.getRaw(ROOT);
    Path root = named == null || named.isEmpty() ? dataset : new Path(named);
    if (root == null) {
      throw new ParquetCryptoRuntimeException(
          "the policy's AAD prefix contains {path}, a path inside a dataset, but the dataset of "
              + file + " is unknown; pass root=, the dataset's folder, to native_options");
    }
    String found = inside(file, root, configuration);
    if (found == null) {
      throw new ParquetCryptoRuntimeException(
          file + " is not inside root, the dataset's folder: " + root);
    }
    return found;
  }

  /** Returns the path of a file relative to a folder; null if it is not inside the folder. */
  static String inside(Path file, Path folder, Configuration configuration) {
    try {
      Path path = file.getFileSystem(configuration).makeQualified(file);
      Path root = folder.getFileSystem(configuration).makeQualified(folder);
      boolean same = equal(path.toUri().getScheme(), root.toUri().getScheme())
          && equal(path.toUri().getAuthority(), root.toUri().getAuthority());
      String base = root.toUri().getPath();
      if (!base.endsWith("/")) base += "/";
      String text = path.toUri().getPath();
      boolean below = same && text.startsWith(base) && text.length() > base.length();
      return below ? text.substring(base.length()) : null;
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException(
          "the file system of " + file + " can't be used: " + error.getClass().getSimpleName(),
          error);
    }
  }

  private static boolean equal(String first, String second) {
    return first == null ? second == null : first.equalsIgnoreCase(second);
  }
}

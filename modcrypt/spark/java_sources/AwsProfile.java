package modcrypt;

import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/** The access key of a profile in AWS's shared file of credentials, ~/.aws/credentials. */
final class AwsProfile {
  private static final int MAX_FILE = 256 << 10;

  private AwsProfile() {}

  /** Returns the key of the profile; null if no profile is named and the file has no default. */
  static AwsKey key(Map environment) {
    String named = Texts.variable(environment, "AWS_DEFAULT_PROFILE");
    if (named == null) named = Texts.variable(environment, "AWS_PROFILE");
    String file = file(environment);
    Map profile = file == null || !Files.isRegularFile(Texts.path(file)) ? null
        : profile(file, named == null ? "default" : named);
    if (profile == null && named == null) return null;
    String id = profile == null ? null : (String) profile.get("aws_access_key_id");
    AwsKey key = profile == null || profile.containsKey("role_arn") ? null
        : new AwsKey(id, (String) profile.get("aws_secret_access_key"),
            (String) profile.get("aws_session_token"), null);
    if (key != null && key.isWellFormed()) return key;
    throw new KeyAccessDeniedException(
        "the profile of AWS in AWS_PROFILE has no access key in " + file + "; for roles, single"
            + " sign-on and processes in profiles, use the data source modcrypt");
  }

  private static String file(Map environment) {
    String named = Texts.variable(environment, "AWS_SHARED_CREDENTIALS_FILE");
    String home = Texts.variable(environment, "HOME");
    return named != null || home == null ? named : home + "/.aws/credentials";
  }

  /** Returns the settings of a section; null if the file lacks it. */
  private static Map profile(String file, String name) {
    byte[] read = Texts.secret("file:" + file, MAX_FILE, false, "the credentials for AWS");
    String text = read.length > MAX_FILE ? null : Texts.utf8(read);
    if (text == null) {
      throw new KeyAccessDeniedException(
          "the credentials for AWS in " + file + " are not UTF-8, or longer than " + MAX_FILE
              + " bytes");
    }
    Map settings = null;
    boolean inside = false;
    String[] lines = text.split("\r?\n");
    for (int n = 0; n < lines.length; n++) {
      String line = lines[n].trim();
      if (line.startsWith("[") && line.endsWith("]")) {
        inside = line.substring(1, line.length() - 1).trim().equals(name);
        if (inside && settings == null) settings = new HashMap();
      } else if (inside && line.indexOf('=') > 0 && !line.startsWith("#") && !line.startsWith(";")) {
        int at = line.indexOf('=');
        settings.put(line.substring(0, at).trim().toLowerCase(), line.substring(at + 1).trim());
      }
    }
    return settings;
  }
}

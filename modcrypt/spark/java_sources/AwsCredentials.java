package modcrypt;

import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/** The access key for AWS, from the first of the usual places that has one. */
final class AwsCredentials {
  private final Map environment;

  AwsCredentials(Map environment) {
    this.environment = environment;
  }

  AwsKey key() {
    AwsKey key = fromEnvironment();
    if (key != null) return key;
    throw new KeyAccessDeniedException(
        "no credentials for AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for driver and"
            + " executors");
  }

  private AwsKey fromEnvironment() {
    String id = get("AWS_ACCESS_KEY_ID");
    if (id == null) return null;
    AwsKey key = new AwsKey(id, get("AWS_SECRET_ACCESS_KEY"), get("AWS_SESSION_TOKEN"), null);
    if (key.isWellFormed()) return key;
    throw new KeyAccessDeniedException(
        "the credentials for AWS in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            + " are incomplete or malformed");
  }

  private String get(String name) {
    String value = (String) environment.get(name);
    return value == null || value.isEmpty() ? null : value;
  }
}

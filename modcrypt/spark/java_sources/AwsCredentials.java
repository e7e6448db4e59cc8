package modcrypt;

import java.util.Map;
import org.apache.parquet.crypto.KeyAccessDeniedException;

/**
 * The access key for AWS, from the first of the usual places that has one: variables, a web
 * identity, the shared file, the container, the instance. No place is skipped if it is set up but
 * fails, because the next one may belong to another identity.
 */
final class AwsCredentials {
  private final String region;
  private final Map environment;
  private AwsKey key;

  AwsCredentials(String region, Map environment) {
    this.region = region;
    this.environment = environment;
  }

  synchronized AwsKey key() {
    if (key == null || !key.isFresh()) key = found();
    return key;
  }

  synchronized void forget() {
    key = null;
  }

  private AwsKey found() {
    AwsKey found = fromEnvironment();
    if (found == null) found = AwsWebIdentity.key(region, environment);
    if (found == null) found = AwsProfile.key(environment);
    if (found == null) found = AwsMetadata.key(environment);
    if (found != null) return found;
    throw new KeyAccessDeniedException(
        "no credentials for AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE,"
            + " for driver and executors, or use a role");
  }

  private AwsKey fromEnvironment() {
    String id = Texts.variable(environment, "AWS_ACCESS_KEY_ID");
    if (id == null) return null;
    AwsKey found = new AwsKey(id, Texts.variable(environment, "AWS_SECRET_ACCESS_KEY"),
        Texts.variable(environment, "AWS_SESSION_TOKEN"), null);
    if (found.isWellFormed()) return found;
    throw new KeyAccessDeniedException(
        "the credentials for AWS in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            + " are incomplete or malformed");
  }
}

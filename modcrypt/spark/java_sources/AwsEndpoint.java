package modcrypt;

import java.util.Map;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The address of a service of AWS in a region, from AWS's own variables or names. */
final class AwsEndpoint {
  static final String[] AUTHORITIES = new String[] {"AWS_CA_BUNDLE"};

  private AwsEndpoint() {}

  /** Returns the region of this process; null if none is set. */
  static String region(Map environment) {
    return (String) environment.get("AWS_DEFAULT_REGION");
  }

  /** Returns the address of `kms` or `sts`; throws if a variable names one without TLS. */
  static String address(String service, String region, Map environment) {
    String[] names = new String[] {"AWS_ENDPOINT_URL_" + service.toUpperCase(), "AWS_ENDPOINT_URL"};
    boolean ignored = isTrue(environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    for (int n = 0; n < names.length && !ignored; n++) {
      String value = Texts.variable(environment, names[n]);
      if (value != null) return Http.checked(value, names[n]);
    }
    String host = isTrue(environment, "AWS_USE_FIPS_ENDPOINT") ? service + "-fips" : service;
    return "https://" + host + "." + region + "." + domain(region);
  }

  static boolean isTrue(Map environment, String name) {
    return "true".equalsIgnoreCase((String) environment.get(name));
  }

  private static String domain(String region) {
    if (region.startsWith("cn-")) return "amazonaws.com.cn";
    if (region.startsWith("eusc-")) return "amazonaws.eu";
    if (region.contains("-iso")) {
      throw new ParquetCryptoRuntimeException(
          "region " + region + ": set AWS_ENDPOINT_URL to the address of the service");
    }
    return "amazonaws.com";
  }
}

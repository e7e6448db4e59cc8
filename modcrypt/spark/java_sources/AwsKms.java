package modcrypt;

import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A client for AWS KMS in one region, aws-kms://KEY?region=REGION. URIs, requests and wrapped keys
 * are those of modcrypt's Python (modcrypt/kms/services/aws.py).
 */
final class AwsKms implements KeyService {
  private static final int MAX_BLOB = 6144; // limit of KMS for a CiphertextBlob, in bytes
  private static final Pattern REGION = Pattern.compile("[a-z0-9-]{1,40}");
  private static final Pattern ARN = Pattern.compile(
      "arn:aws[a-z-]{0,20}:kms:([a-z0-9-]{1,40}):([0-9]{12}):"
          + "(key/[A-Za-z0-9-]{1,64}|alias/[A-Za-z0-9/_-]{1,250})");
  private static final Pattern KEY_ID = Pattern.compile(
      "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}");
  private static final Pattern ALIAS = Pattern.compile("alias/[A-Za-z0-9/_-]{1,250}");
  private static final Pattern CODE = Pattern.compile("[A-Za-z]{1,60}");

  private static final List NOT_FOUND = Arrays.asList(new String[] {
      "NotFoundException", "NotFound", "InvalidArnException", "InvalidAliasNameException"});
  private static final List DISABLED = Arrays.asList(new String[] {
      "DisabledException", "KMSInvalidStateException"});
  private static final List MATERIAL = Arrays.asList(new String[] {
      "InvalidCiphertextException", "IncorrectKeyException"});
  private static final List DENIED = Arrays.asList(new String[] {
      "AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException",
      "IncompleteSignature", "InvalidClientTokenId", "InvalidSignatureException",
      "MissingAuthenticationToken", "MissingAuthenticationTokenException", "NotAuthorized",
      "OptInRequired", "SignatureDoesNotMatch", "UnrecognizedClientException"});
  private static final List UNAVAILABLE = Arrays.asList(new String[] {
      "DependencyTimeoutException", "KMSInternalException", "KeyUnavailableException",
      "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable",
      "ServiceUnavailableException"});
  private static final List THROTTLED = Arrays.asList(new String[] {
      "LimitExceededException", "RequestLimitExceeded", "RequestThrottled",
      "RequestThrottledException", "SlowDown", "TooManyRequestsException"});

  private final String region;
  private final String account; // of the ARN in the URI; null without one
  private final String address;
  private final Map context;
  private final AwsCredentials credentials;
  private final Http http;

  AwsKms(String uri, byte[] aad) {
    this(uri, aad, System.getenv());
  }

  public AwsKms(String uri, byte[] aad, Map environment) {
    KmsUri parts = new KmsUri(uri, new String[] {"region"});
    if (!parts.location.startsWith("//") || !parts.fragment.isEmpty()) throw misspelt();
    String key = parts.location.substring(2);
    Matcher arn = ARN.matcher(key);
    boolean isArn = arn.matches();
    if (!key.isEmpty() && !isArn && !KEY_ID.matcher(key).matches()
        && !ALIAS.matcher(key).matches()) {
      throw misspelt();
    }
    String named = parts.get("region", "");
    if (named.isEmpty() && isArn) named = arn.group(1);
    if (isArn && !named.equals(arn.group(1))) {
      throw new ParquetCryptoRuntimeException(
          "aws-kms: the region in the ARN and region= differ; remove region=");
    }
    account = isArn ? arn.group(2) : null;
    region = named.isEmpty() ? AwsEndpoint.region(environment) : named;
    if (region == null || !REGION.matcher(region).matches()) {
      throw new ParquetCryptoRuntimeException(
          "aws-kms: no region; add ?region=REGION to the URI or set AWS_DEFAULT_REGION");
    }
    address = AwsEndpoint.address("kms", region, environment);
    credentials = new AwsCredentials(region, environment);
    context = aad.length == 0 ? Collections.EMPTY_MAP
        : Collections.singletonMap("modcrypt:aad", Base64.getEncoder().encodeToString(aad));
    http = new Http(where(), address, AwsEndpoint.AUTHORITIES, environment);
  }

  private static ParquetCryptoRuntimeException misspelt() {
    return new ParquetCryptoRuntimeException(
        "the URI of a key in AWS KMS is aws-kms://arn:aws:kms:REGION:ACCOUNT:key/ID or"
            + " aws-kms://alias/NAME, that of a region without a default key"
            + " aws-kms://?region=REGION");
  }

  // --- wrapping ---

  public String wrap(byte[] key, String id) {
    Map body = new TreeMap();
    body.put("Plaintext", Base64.getEncoder().encodeToString(key));
    byte[] blob = Texts.base64(asked("Encrypt", body, id).get("CiphertextBlob"));
    if (blob == null || blob.length > MAX_BLOB) throw unlikeKms("CiphertextBlob");
    return Base64.getEncoder().encodeToString(blob);
  }

  public byte[] unwrap(String wrapped, String id) {
    byte[] blob = wrapped.length() > (MAX_BLOB + 2) / 3 * 4 ? null : Texts.base64(wrapped);
    if (blob == null) {
      throw new ParquetCryptoRuntimeException(
          "the wrapped key for AWS KMS is not valid base64, or exceeds " + MAX_BLOB + " bytes");
    }
    Map body = new TreeMap();
    body.put("CiphertextBlob", wrapped);
    byte[] key = Texts.base64(decrypted(body, id).get("Plaintext"));
    if (key == null) throw unlikeKms("Plaintext");
    return key;
  }

  /**
   * Decrypts under a master key; follows an alias that was re-pointed.
   *
   * KMS then refuses the alias, or its present key, although it would decrypt under the key that
   * the ciphertext names. Only a key of the alias's account and region is accepted: the writer of a
   * file may have a key of his own in another one.
   */
  private Map decrypted(Map body, String id) {
    String target = target(id);
    if (!target.contains("alias/")) return asked("Decrypt", body, id);
    HttpAnswer answer = sent("Decrypt", body, target);
    String code = code(answer);
    if (answer.status == 200 || !(code.equals("IncorrectKeyException") || DENIED.contains(code))) {
      return checked(answer, target, id);
    }
    HttpAnswer other = sent("Decrypt", body, null);
    if (other.status != 200) throw refusal(other, id);
    Map content = other.json();
    if (content == null) throw unlikeKms("JSON");
    Matcher used = ARN.matcher(String.valueOf(content.get("KeyId")));
    if (!used.matches() || !used.group(1).equals(region)
        || !used.group(2).equals(accountOf(target, id))) {
      throw new ParquetCryptoRuntimeException(
          "master key " + id + ": the key that wrapped this belongs to another account or region"
              + " than the alias");
    }
    return content;
  }

  /** Returns the account of an alias, which KMS alone knows if the alias is no ARN. */
  private String accountOf(String alias, String id) {
    Matcher arn = ARN.matcher(alias);
    if (arn.matches()) return arn.group(2);
    HttpAnswer answer = sent("DescribeKey", new TreeMap(), alias);
    if (answer.status != 200) throw refusal(answer, id);
    Map content = answer.json();
    Object key = content == null ? null : content.get("KeyMetadata");
    arn = ARN.matcher(String.valueOf(key instanceof Map ? ((Map) key).get("Arn") : null));
    if (!arn.matches()) throw unlikeKms("Arn");
    return arn.group(2);
  }

  private Map asked(String operation, Map body, String id) {
    String target = target(id);
    return checked(sent(operation, body, target), target, id);
  }

  private HttpAnswer sent(String operation, Map members, String target) {
    Map body = new TreeMap(members);
    if (target != null) body.put("KeyId", target);
    if (!context.isEmpty() && !operation.equals("DescribeKey")) {
      body.put("EncryptionContext", context);
    }
    byte[] data = Texts.json(body);
    Map headers = new TreeMap();
    headers.put("content-type", "application/x-amz-json-1.1");
    headers.put("x-amz-target", "TrentService." + operation);
    return http.send("POST", "/", data,
        AwsSignature.headers(credentials.key(), region, "kms", address, headers, data));
  }

  private Map checked(HttpAnswer answer, String target, String id) {
    if (answer.status != 200) throw refusal(answer, id);
    Map content = answer.json();
    if (content == null) throw unlikeKms("JSON");
    demandKey(target, content.get("KeyId"));
    return content;
  }

  /** Returns the key id for a request, after a check that it leads to no other region. */
  private String target(String id) { // it may come from a file
    Matcher arn = ARN.matcher(id);
    if (!arn.matches()) {
      boolean plain = !id.startsWith("alias/") && !id.startsWith("arn:")
          && !KEY_ID.matcher(id).matches();
      String name = plain ? "alias/" + id : id;
      if (KEY_ID.matcher(name).matches() || ALIAS.matcher(name).matches()) return name;
      throw new ParquetCryptoRuntimeException(
          "master key " + Texts.shown(id) + " is not an ARN, id, alias or name of AWS KMS");
    }
    if (!arn.group(1).equals(region)) {
      throw new ParquetCryptoRuntimeException(
          "master key " + id + " is in another region than this client, which is for " + region
              + ": use aws-kms://?region=" + arn.group(1) + " for it");
    }
    if (account != null && !account.equals(arn.group(2))) {
      throw new ParquetCryptoRuntimeException(
          "master key " + id + " is in another account than the key in the URI: use"
              + " aws-kms://?region=" + region + " for keys of several accounts");
    }
    return id;
  }

  /** Checks that KMS used the key that was named; the key of an alias is KMS's choice. */
  private void demandKey(String target, Object used) {
    Matcher arn = ARN.matcher(used instanceof String ? (String) used : "");
    boolean same = arn.matches() && arn.group(1).equals(region) && arn.group(3).startsWith("key/")
        && (target.contains("alias/") || used.equals(target)
            || arn.group(3).equals("key/" + target));
    if (!same) throw unlikeKms("KeyId");
  }

  // --- errors ---

  /** Turns an answer into an error, which repeats only KMS's error code. */
  private ParquetCryptoRuntimeException refusal(HttpAnswer answer, String id) {
    if (answer.isRedirect()) {
      return new ParquetCryptoRuntimeException(
          where() + " redirects to another address, which modcrypt does not follow: check the"
              + " endpoint (AWS_ENDPOINT_URL_KMS) and proxies");
    }
    String code = code(answer);
    String said = "master key " + id + ": " + where() + " answered " + code;
    if (NOT_FOUND.contains(code)) {
      return new ParquetCryptoRuntimeException(said + ": the key does not exist");
    }
    if (DISABLED.contains(code)) {
      return new KeyAccessDeniedException(
          said + ": the key is disabled, or scheduled for deletion");
    }
    if (DENIED.contains(code)) {
      credentials.forget();
      return new KeyAccessDeniedException(
          said + ": the credentials or the key's policy do not permit the request");
    }
    if (MATERIAL.contains(code)) {
      return new ParquetCryptoRuntimeException(
          said + ": the wrapped key does not unwrap: altered bytes, another master key or other"
              + " AAD");
    }
    boolean throttled = THROTTLED.contains(code) || code.startsWith("Throttl")
        || answer.status == 429;
    if (throttled || UNAVAILABLE.contains(code) || answer.status >= 500) {
      return new UnavailableException(said, throttled, answer.retryAfter);
    }
    return new ParquetCryptoRuntimeException(said + " (" + answer.status + ")");
  }

  private static String code(HttpAnswer answer) {
    String type = String.valueOf(answer.text("__type"));
    String code = type.substring(type.indexOf('#') + 1);
    boolean valid = answer.text("__type") != null && CODE.matcher(code).matches();
    return valid ? code : "an unknown error";
  }

  private static ParquetCryptoRuntimeException unlikeKms(String member) {
    return new ParquetCryptoRuntimeException(
        "the answer is not from AWS KMS: " + member + " is missing or malformed; check the endpoint"
            + " (AWS_ENDPOINT_URL_KMS) and proxies");
  }

  private String where() {
    return "AWS KMS in " + region;
  }
}

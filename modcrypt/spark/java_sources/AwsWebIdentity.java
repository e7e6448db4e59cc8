package modcrypt;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import javax.xml.parsers.DocumentBuilder;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.parsers.ParserConfigurationException;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.w3c.dom.Document;
import org.w3c.dom.NodeList;
import org.xml.sax.SAXException;

/** A temporary access key for the token of a web identity, such as a service account's. */
final class AwsWebIdentity {
  private static final int MAX_TOKEN = 20_000; // limit of STS
  private static final String WHO = "AWS STS";

  private AwsWebIdentity() {}

  /** Returns a new key; null if no web identity is set up. */
  static AwsKey key(String region, Map environment) {
    String file = Texts.variable(environment, "AWS_WEB_IDENTITY_TOKEN_FILE");
    if (file == null) return null;
    String role = Texts.variable(environment, "AWS_ROLE_ARN");
    if (role == null) {
      throw new KeyAccessDeniedException(
          "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not");
    }
    String session = Texts.variable(environment, "AWS_ROLE_SESSION_NAME");
    byte[] form = Texts.form(new String[] {
        "Action", "AssumeRoleWithWebIdentity", "Version", "2011-06-15", "RoleArn", role,
        "RoleSessionName", session == null ? "modcrypt" : session,
        "WebIdentityToken", token(file)});
    Http http = new Http(WHO, AwsEndpoint.address("sts", region, environment),
        AwsEndpoint.AUTHORITIES, environment);
    HttpAnswer answer = http.send("POST", "/", form,
        new String[] {"Content-Type", "application/x-www-form-urlencoded"});
    if (answer.status == 429 || answer.status >= 500) {
      throw new UnavailableException(WHO + " answers " + answer.status);
    }
    AwsKey key = answer.status == 200 ? parsed(answer.body) : null;
    if (key != null) return key;
    throw new KeyAccessDeniedException(
        WHO + " gives no credentials for the web identity in AWS_WEB_IDENTITY_TOKEN_FILE and the"
            + " role in AWS_ROLE_ARN (" + answer.status + ")");
  }

  /** Reads the token, each time: Kubernetes renews it. */
  private static String token(String file) {
    byte[] read = Texts.secret("file:" + file, MAX_TOKEN, false, "AWS_WEB_IDENTITY_TOKEN_FILE");
    String text = new String(read, StandardCharsets.ISO_8859_1).trim();
    Arrays.fill(read, (byte) 0);
    if (text.length() <= MAX_TOKEN && text.matches("[!-~]+")) return text;
    throw new KeyAccessDeniedException(
        "the file of AWS_WEB_IDENTITY_TOKEN_FILE, " + file + ", contains no token");
  }

  private static AwsKey parsed(byte[] body) {
    try {
      DocumentBuilderFactory factory = DocumentBuilderFactory.newInstance();
      factory.setFeature("http://apache.org/xml/features/disallow-doctype-decl", true);
      factory.setXIncludeAware(false);
      factory.setExpandEntityReferences(false);
      DocumentBuilder builder = factory.newDocumentBuilder();
      builder.setErrorHandler(null); // it would print parts of the answer
      Document document = builder.parse(new ByteArrayInputStream(body));
      return AwsKey.temporary(text(document, "AccessKeyId"), text(document, "SecretAccessKey"),
          text(document, "SessionToken"), text(document, "Expiration"));
    } catch (ParserConfigurationException error) {
      throw new IllegalStateException("this JVM lacks an XML parser");
    } catch (SAXException error) {
      return null;
    } catch (IOException error) {
      return null;
    }
  }

  private static String text(Document document, String name) {
    NodeList found = document.getElementsByTagName(name);
    return found.getLength() == 1 ? found.item(0).getTextContent().trim() : null;
  }
}

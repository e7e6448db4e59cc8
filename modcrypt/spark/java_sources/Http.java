package modcrypt;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManagerFactory;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * Requests to one address, with limits for the duration and size of answers.
 *
 * Redirects are answers: following one would send keys and tokens elsewhere. No error repeats a
 * request or an answer.
 */
final class Http {
  private static final int SECONDS = 10; // limit for a connection, and for an answer
  private static final int MAX_ANSWER = 1 << 20;

  private final String name;
  private final String address;
  private final String[] authorities;
  private final Map environment;
  private final int seconds;
  private HttpClient client;

  /**
   * @param name what answers there, for messages.
   * @param address scheme, host and port.
   * @param authorities variables that may name a file or folder of certificates to trust instead of
   *     the JVM's.
   */
  Http(String name, String address, String[] authorities, Map environment) {
    this(name, address, authorities, environment, SECONDS);
  }

  Http(String name, String address, String[] authorities, Map environment, int seconds) {
    this.name = name;
    this.address = address;
    this.authorities = authorities;
    this.environment = environment;
    this.seconds = seconds;
  }

  static boolean isLoopback(String host) {
    return host.equals("localhost") || host.equals("[::1]")
        || host.matches("127(\\.[0-9]{1,3}){3}");
  }

  /** Returns an address from a variable without its last slash; throws if it has no TLS. */
  static String checked(String address, String variable) {
    String bare = address.endsWith("/") ? address.substring(0, address.length() - 1) : address;
    boolean valid = bare.matches("https?://([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?");
    if (valid && !bare.startsWith("https:")) valid = isLoopback(hostOf(bare));
    if (!valid) {
      throw new ParquetCryptoRuntimeException(
          variable + " must be https://HOST[:PORT]: without TLS, or at another kind of address, it"
              + " would expose keys");
    }
    return bare;
  }

  /** Sends a request, whose headers are name, value, name, value; a body of null sends none. */
  HttpAnswer send(String method, String path, byte[] body, String[] headers) {
    HttpRequest.Builder request = HttpRequest.newBuilder()
        .uri(URI.create(address + path))
        .timeout(Duration.ofSeconds(seconds))
        .method(method, body == null ? HttpRequest.BodyPublishers.noBody()
            : HttpRequest.BodyPublishers.ofByteArray(body));
    for (int n = 0; n < headers.length; n += 2) request.header(headers[n], headers[n + 1]);
    Future sent = connected().sendAsync(request.build(), new LimitedBody(MAX_ANSWER));
    try {
      HttpResponse answer = (HttpResponse) sent.get(2 * seconds, TimeUnit.SECONDS); // with its body
      if (answer.body() == null) {
        throw new ParquetCryptoRuntimeException(
            "the answer of " + name + " is longer than " + MAX_ANSWER + " bytes");
      }
      return new HttpAnswer(answer.statusCode(), (byte[]) answer.body(), answer.headers());
    } catch (ExecutionException error) {
      throw unreached(error.getCause());
    } catch (TimeoutException error) {
      sent.cancel(true);
      throw unreached(error);
    } catch (InterruptedException stopped) {
      sent.cancel(true);
      Thread.currentThread().interrupt();
      throw new ParquetCryptoRuntimeException("interrupted while waiting for " + name);
    }
  }

  private ParquetCryptoRuntimeException unreached(Throwable error) {
    // "Unrecognized SSL message, plaintext connection?", or "Unsupported or unrecognized ..."
    if (error instanceof SSLException
        && String.valueOf(error.getMessage()).indexOf("nrecognized SSL message") >= 0) {
      return new ParquetCryptoRuntimeException(
          name + " does not speak TLS: check the port and the address; for a Vault without TLS on"
              + " the loopback interface, add ?tls=off to the URI");
    }
    if (error instanceof SSLException) {
      String cure = authorities.length == 0
          ? "add its authority to the trust store of this JVM"
          : "set " + authorities[0] + " to the file of another authority";
      return new ParquetCryptoRuntimeException(
          "the TLS certificate of " + name + " is not trusted here; " + cure);
    }
    return new UnavailableException(
        name + " is unavailable: " + error.getClass().getSimpleName());
  }

  private synchronized HttpClient connected() {
    if (client == null) {
      HttpClient.Builder builder = HttpClient.newBuilder()
          .version(HttpClient.Version.HTTP_1_1)
          .followRedirects(HttpClient.Redirect.NEVER)
          .connectTimeout(Duration.ofSeconds(seconds));
      if (isLocal(hostOf(address))) builder.proxy(HttpClient.Builder.NO_PROXY);
      SSLContext trusted = trusted();
      if (trusted != null) builder.sslContext(trusted);
      client = builder.build();
    }
    return client;
  }

  private static String hostOf(String address) {
    String host = URI.create(address).getHost();
    return host == null ? "" : host;
  }

  /** Whether a host is this machine or its cloud's metadata service, which no proxy may answer. */
  private static boolean isLocal(String host) {
    return isLoopback(host) || host.startsWith("169.254.") || host.startsWith("[fd00:ec2:")
        || host.equals("metadata.google.internal");
  }

  // --- authorities ---

  /** Returns a context that trusts only the certificates that a variable names; null without. */
  private SSLContext trusted() {
    for (int n = 0; n < authorities.length; n++) {
      String place = Texts.variable(environment, authorities[n]);
      if (place == null) continue;
      try {
        return trusting(new File(place));
      } catch (IOException error) {
        throw untrusting(authorities[n], place);
      } catch (GeneralSecurityException error) {
        throw untrusting(authorities[n], place);
      }
    }
    return null;
  }

  private static ParquetCryptoRuntimeException untrusting(String variable, String place) {
    return new ParquetCryptoRuntimeException(
        variable + ": " + place + " contains no readable certificates");
  }

  private static SSLContext trusting(File place) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    File[] files = place.isDirectory() ? place.listFiles() : new File[] {place};
    for (int n = 0; n < files.length; n++) {
      InputStream in = new FileInputStream(files[n]);
      try {
        Iterator found =
            CertificateFactory.getInstance("X.509").generateCertificates(in).iterator();
        while (found.hasNext()) {
          store.setCertificateEntry("authority-" + store.size(), (Certificate) found.next());
        }
      } finally {
        in.close();
      }
    }
    TrustManagerFactory factory =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, factory.getTrustManagers(), null);
    return context;
  }
}

package modcrypt;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.Provider;
import java.security.ProviderException;
import java.security.Security;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * Providers of Java's SunPKCS11 for the slots of a PKCS#11 module.
 *
 * SunPKCS11 has no other public means to describe a token than to print it (showInfo), so a thread
 * that makes a provider receives what it prints.
 */
final class Pkcs11Slots {
  private static final Pattern SLOTS = Pattern.compile("(?m)^All slots: (.*)$");
  private static final Pattern TOKEN = Pattern.compile("(?m)^Token info for token in slot (.*):$");
  private static final int MAX_SLOTS = 1000;

  private Pkcs11Slots() {}

  /** Returns the provider of the one token that a URI describes. */
  static synchronized Provider find(Pkcs11Uri uri) {
    if (!uri.isNamed) checkOwner(uri.module);
    Provider found = null;
    int count = 1;
    for (int index = 0; index < Math.min(count, MAX_SLOTS); index++) {
      Attempt attempt = new Attempt(uri.module, index);
      String[] slots = listed(attempt.printed);
      if (index == 0) {
        if (slots.length == 0 && attempt.provider == null) throw unloadable(uri.module);
        count = slots.length;
      }
      if (attempt.provider == null || !matches(uri, attempt.printed)) continue;
      if (found != null) {
        throw new ParquetCryptoRuntimeException(
            "the PKCS#11 URI matches several tokens; add token= or serial=");
      }
      found = attempt.provider;
    }
    if (found != null) return found;
    throw new ParquetCryptoRuntimeException(
        "PKCS#11 module " + uri.module + " has no token that matches the URI");
  }

  /** Checks a module that only a URI names: loading it runs its code, and anyone writes URIs. */
  private static void checkOwner(String module) {
    boolean isOfRoot;
    try {
      Paths.get(module).toRealPath(); // a circle of links has none
      isOfRoot = onlyRootCanWrite(Paths.get(module));
    } catch (IOException error) {
      throw unloadable(module);
    } catch (UnsupportedOperationException error) { // files have no POSIX owners here
      isOfRoot = false;
    }
    if (isOfRoot) return;
    throw new ParquetCryptoRuntimeException(
        "others than root can write the PKCS#11 module " + module + " or a folder above it; if its"
            + " code may run here, set MODCRYPT_PKCS11_MODULE to this path");
  }

  private static boolean onlyRootCanWrite(Path path) throws IOException {
    LinkOption[] itself = new LinkOption[] {LinkOption.NOFOLLOW_LINKS};
    for (Path step = path; step != null; step = step.getParent()) {
      Map facts = Files.readAttributes(step, "unix:uid,mode", itself);
      if (((Integer) facts.get("uid")).intValue() != 0) return false;
      int mode = ((Integer) facts.get("mode")).intValue();
      if ((mode & 0xF000) == 0xA000) { // a link, whose own mode means nothing
        if (!onlyRootCanWrite(step.resolveSibling(Files.readSymbolicLink(step)))) return false;
      } else if ((mode & 18) != 0) { // writable by group or others
        return false;
      }
    }
    return true;
  }

  private static boolean matches(Pkcs11Uri uri, String printed) {
    Matcher start = TOKEN.matcher(printed);
    if (!start.find()) return false;
    int end = printed.indexOf("\nMechanism ", start.end());
    String token = printed.substring(start.end(), end < 0 ? printed.length() : end);
    if (!trait(token, "flags").contains("CKF_TOKEN_INITIALIZED")) return false;
    String slot = (String) uri.path.get("slot-id");
    if (slot != null && !slot.replaceAll("^0+(?=.)", "").equals(start.group(1))) return false;
    for (int n = 0; n < Pkcs11Uri.TRAITS.length; n += 2) {
      Object wanted = uri.path.get(Pkcs11Uri.TRAITS[n]);
      if (wanted != null && !wanted.equals(trait(token, Pkcs11Uri.TRAITS[n + 1]))) return false;
    }
    return true;
  }

  /** Returns a trait of a token without the blanks that fill it up; empty if it is ambiguous. */
  private static String trait(String token, String name) {
    Matcher line = Pattern.compile("(?m)^  " + name + ": (.*?) *$").matcher(token);
    String value = line.find() ? line.group(1) : "";
    return line.find() ? "" : value;
  }

  private static String[] listed(String printed) {
    Matcher line = SLOTS.matcher(printed);
    if (!line.find() || line.group(1).trim().isEmpty()) return new String[0];
    return line.group(1).trim().split(", *");
  }

  private static ParquetCryptoRuntimeException unloadable(String module) {
    return new ParquetCryptoRuntimeException(
        "PKCS#11 module " + module + " cannot be loaded, or has no slots");
  }

  /** An attempt to make a provider for a slot, and what this prints; null where that fails. */
  private static final class Attempt {
    final Provider provider;
    final String printed;

    Attempt(String module, int index) {
      String configuration = "--name=modcrypt-" + index + "\nlibrary=" + module
          + "\nslotListIndex=" + index + "\nshowInfo=true\n";
      Provider general = Security.getProvider("SunPKCS11");
      if (general == null) {
        throw new ParquetCryptoRuntimeException(
            "this JVM lacks the module jdk.crypto.cryptoki, which PKCS#11 needs");
      }
      PrintStream before = System.out;
      Listener listener = new Listener(before);
      System.setOut(listener);
      Provider made = null;
      try {
        made = general.configure(configuration);
      } catch (ProviderException error) {
        made = null; // an empty slot, or no module
      } finally {
        if (System.out == listener) System.setOut(before);
      }
      provider = made;
      printed = listener.text();
    }
  }

  /** A standard output that keeps what the thread that made it prints, and passes on the rest. */
  private static final class Listener extends PrintStream {
    private final PrintStream others;
    private final Thread mine = Thread.currentThread();
    private final StringBuilder heard = new StringBuilder();

    Listener(PrintStream others) {
      super(others, true);
      this.others = others;
    }

    public void println(Object value) {
      if (Thread.currentThread() == mine) heard.append(value).append('\n');
      else others.println(value);
    }

    public void println(String value) {
      println((Object) value);
    }

    public void println() {
      println((Object) "");
    }

    public void print(String value) {
      if (Thread.currentThread() == mine) heard.append(value);
      else others.print(value);
    }

    String text() {
      return heard.toString();
    }
  }
}

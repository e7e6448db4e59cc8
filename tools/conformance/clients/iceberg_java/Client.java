import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.lang.reflect.*;
import java.nio.ByteBuffer;
import java.security.*;
import java.util.*;
import org.apache.avro.generic.IndexedRecord;
import org.apache.iceberg.Files;
import org.apache.iceberg.IcebergBuild;
import org.apache.iceberg.encryption.*;
import org.apache.iceberg.io.*;
import org.apache.iceberg.util.ByteBuffers;

/** The client of Iceberg's Java: AGS1 streams and standard key metadata. */
public class Client {
  public static void main(String[] arguments) throws IOException {
    var formats = List.of("ags1", "key-metadata");
    String features = "unverified-length";
    Messages.serve(
        Messages.started("Iceberg Java", IcebergBuild.version(), formats, features, features),
        message -> isStream(message) ? decrypt(message) : decode(message),
        message -> isStream(message) ? encrypt(message) : encode(message));
  }

  static boolean isStream(JsonNode message) {
    return message.get("format").asText().equals("ags1");
  }

  static ObjectNode decrypt(JsonNode message) throws Exception {
    File file = new File(message.get("path").asText());
    // Without a trusted length, Iceberg asks the file system.
    long length = message.get("length").isNull() ? file.length() : message.get("length").asLong();
    InputFile input = new AesGcmInputFile(
        Files.localInput(file), Messages.bytes(message.get("key")), Messages.bytes(message.get("aad_prefix")), length);
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    long count = 0;
    try (InputStream in = new DigestInputStream(input.newStream(), digest)) {
      byte[] buffer = new byte[1 << 16];
      for (int n; (n = in.read(buffer)) > 0; ) count += n;
    }
    return Messages.outcome("bytes").put("length", count)
        .put("sha256", Messages.HEX.formatHex(digest.digest()));
  }

  static ObjectNode encrypt(JsonNode message) throws IOException {
    OutputFile target = Files.localOutput(new File(message.get("path").asText()));
    OutputFile output = new AesGcmOutputFile(target, Messages.bytes(message.get("key")), Messages.bytes(message.get("aad_prefix")));
    try (OutputStream out = output.create();
        InputStream in = new FileInputStream(message.get("input").asText())) {
      in.transferTo(out);
    }
    return Messages.outcome("written");
  }

  // StandardKeyMetadata is private to its package.

  static Class<?> standard() throws ClassNotFoundException {
    return Class.forName("org.apache.iceberg.encryption.StandardKeyMetadata");
  }

  static ObjectNode decode(JsonNode message) throws Exception {
    Method parse = standard().getDeclaredMethod("parse", ByteBuffer.class);
    parse.setAccessible(true);
    NativeEncryptionKeyMetadata found;
    try {
      found = (NativeEncryptionKeyMetadata) parse.invoke(null, ByteBuffer.wrap(Messages.bytes(message.get("bytes"))));
    } catch (InvocationTargetException error) {
      if (error.getCause() instanceof Exception cause) throw cause;
      throw (Error) error.getCause();
    }
    ByteBuffer prefix = found.aadPrefix();
    return Messages.outcome("key").put("key", hex(found.encryptionKey()))
        .put("aad_prefix", prefix == null ? null : hex(prefix)).put("file_length", found.fileLength());
  }

  static String hex(ByteBuffer buffer) {
    return Messages.HEX.formatHex(ByteBuffers.toByteArray(buffer));
  }

  static ObjectNode encode(JsonNode message) throws Exception {
    Constructor<?> empty = standard().getDeclaredConstructor();
    empty.setAccessible(true);
    IndexedRecord made = (IndexedRecord) empty.newInstance();
    made.put(0, ByteBuffer.wrap(Messages.bytes(message.get("key"))));
    byte[] prefix = Messages.bytes(message.get("aad_prefix"));
    if (prefix != null) made.put(1, ByteBuffer.wrap(prefix));
    NativeEncryptionKeyMetadata metadata = (NativeEncryptionKeyMetadata) made;
    if (!message.get("file_length").isNull())
      metadata = metadata.copyWithLength(message.get("file_length").asLong());
    return Messages.outcome("encoded").put("bytes", hex(metadata.buffer()));
  }
}

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
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
  static final ObjectMapper JSON = new ObjectMapper();
  static final HexFormat HEX = HexFormat.of();

  public static void main(String[] arguments) throws IOException {
    PrintStream answers = System.out;
    System.setOut(System.err);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      JsonNode message = JSON.readTree(line);
      String type = message.get("type").asText();
      if (type.equals("stop")) return;
      answers.println(JSON.writeValueAsString(type.equals("start") ? started() : answer(message, type)));
      answers.flush();
    }
  }

  static ObjectNode started() {
    ObjectNode abilities = JSON.createObjectNode();
    abilities.set("formats", JSON.valueToTree(List.of("ags1", "key-metadata")));
    abilities.set("features", JSON.valueToTree(List.of("unverified-length")));
    ObjectNode found = JSON.createObjectNode().put("type", "started").put("protocol", 1)
        .put("name", "Iceberg Java").put("version", IcebergBuild.version());
    found.set("read", abilities);
    found.set("write", abilities.deepCopy());
    return found;
  }

  static ObjectNode answer(JsonNode message, String type) {
    boolean stream = message.get("format").asText().equals("ags1");
    ObjectNode result;
    try {
      if (type.equals("read")) result = stream ? decrypt(message) : decode(message);
      else result = stream ? encrypt(message) : encode(message);
    } catch (Throwable error) {
      if (error instanceof VirtualMachineError fatal) throw fatal;
      result = JSON.createObjectNode().put("outcome", "error").put("message", String.valueOf(error));
    }
    return result.put("type", "result").put("id", message.get("id").asText());
  }

  static byte[] bytes(JsonNode hex) {
    return hex.isNull() ? null : HEX.parseHex(hex.asText());
  }

  static ObjectNode decrypt(JsonNode message) throws Exception {
    File file = new File(message.get("path").asText());
    // Without a trusted length, Iceberg asks the file system.
    long length = message.get("length").isNull() ? file.length() : message.get("length").asLong();
    InputFile input = new AesGcmInputFile(
        Files.localInput(file), bytes(message.get("key")), bytes(message.get("aad_prefix")), length);
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    long count = 0;
    try (InputStream in = new DigestInputStream(input.newStream(), digest)) {
      byte[] buffer = new byte[1 << 16];
      for (int n; (n = in.read(buffer)) > 0; ) count += n;
    }
    return JSON.createObjectNode().put("outcome", "bytes").put("length", count)
        .put("sha256", HEX.formatHex(digest.digest()));
  }

  static ObjectNode encrypt(JsonNode message) throws IOException {
    OutputFile target = Files.localOutput(new File(message.get("path").asText()));
    OutputFile output = new AesGcmOutputFile(target, bytes(message.get("key")), bytes(message.get("aad_prefix")));
    try (OutputStream out = output.create();
        InputStream in = new FileInputStream(message.get("input").asText())) {
      in.transferTo(out);
    }
    return JSON.createObjectNode().put("outcome", "written");
  }

  // StandardKeyMetadata is private to its package.

  static Class<?> standard() throws ClassNotFoundException {
    return Class.forName("org.apache.iceberg.encryption.StandardKeyMetadata");
  }

  static ObjectNode decode(JsonNode message) throws Throwable {
    Method parse = standard().getDeclaredMethod("parse", ByteBuffer.class);
    parse.setAccessible(true);
    NativeEncryptionKeyMetadata found;
    try {
      found = (NativeEncryptionKeyMetadata) parse.invoke(null, ByteBuffer.wrap(bytes(message.get("bytes"))));
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
    ByteBuffer prefix = found.aadPrefix();
    return JSON.createObjectNode().put("outcome", "key").put("key", hex(found.encryptionKey()))
        .put("aad_prefix", prefix == null ? null : hex(prefix)).put("file_length", found.fileLength());
  }

  static String hex(ByteBuffer buffer) {
    return HEX.formatHex(ByteBuffers.toByteArray(buffer));
  }

  static ObjectNode encode(JsonNode message) throws Exception {
    Constructor<?> empty = standard().getDeclaredConstructor();
    empty.setAccessible(true);
    IndexedRecord made = (IndexedRecord) empty.newInstance();
    made.put(0, ByteBuffer.wrap(bytes(message.get("key"))));
    byte[] prefix = bytes(message.get("aad_prefix"));
    if (prefix != null) made.put(1, ByteBuffer.wrap(prefix));
    NativeEncryptionKeyMetadata metadata = (NativeEncryptionKeyMetadata) made;
    if (!message.get("file_length").isNull())
      metadata = metadata.copyWithLength(message.get("file_length").asLong());
    return JSON.createObjectNode().put("outcome", "encoded").put("bytes", hex(metadata.buffer()));
  }
}

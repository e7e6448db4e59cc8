import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.util.*;

/** What the clients in Java share: the loop of messages, and JSON. */
class Messages {
  static final ObjectMapper JSON = new ObjectMapper();
  static final HexFormat HEX = HexFormat.of();

  /** Reading or writing; an Exception is a refusal, and an Error ends the client. */
  interface Operation {
    ObjectNode run(JsonNode message) throws Exception;
  }

  /** Answers messages on standard output, and only those, until `stop` or the end of input. */
  static void serve(ObjectNode started, Operation read, Operation write) throws IOException {
    PrintStream answers = System.out;
    System.setOut(System.err); // what libraries print must not stand among the answers
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      JsonNode message = JSON.readTree(line);
      String type = message.get("type").asText();
      if (type.equals("stop")) return;
      ObjectNode answer = type.equals("start") ? started : answer(type.equals("read") ? read : write, message);
      answers.println(JSON.writeValueAsString(answer));
      answers.flush();
    }
  }

  private static ObjectNode answer(Operation operation, JsonNode message) {
    ObjectNode result;
    try {
      result = operation.run(message);
    } catch (Exception error) {
      result = outcome("error").put("message", String.valueOf(error));
    }
    return result.put("type", "result").put("id", message.get("id").asText());
  }

  static ObjectNode outcome(String kind) {
    return JSON.createObjectNode().put("outcome", kind);
  }

  static ObjectNode started(String name, String version, List<String> formats, String read, String write) {
    ObjectNode found = JSON.createObjectNode().put("type", "started").put("protocol", 1)
        .put("name", name).put("version", version);
    for (var way : Map.of("read", read, "write", write).entrySet()) {
      ObjectNode abilities = found.putObject(way.getKey());
      abilities.set("formats", JSON.valueToTree(formats));
      abilities.set("features", JSON.valueToTree(way.getValue().split(" ")));
    }
    return found;
  }

  /** Bytes of hex, null for null. */
  static byte[] bytes(JsonNode hex) {
    return hex == null || hex.isNull() ? null : HEX.parseHex(hex.asText());
  }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.TableMetadataParser;

/**
 * Apache Iceberg's own Java, as a judge of encrypted tables.
 *
 * <p>A request is a line of JSON on stdin, its answer a line on stdout: {@code {"answer": ...}}, or
 * {@code {"error": [[class, message], ...]}} with the causes, the outermost first. No answer has a
 * key in it: keys and key metadata are told by their SHA-256.
 */
public final class Judge {
  static final ObjectMapper JSON = new ObjectMapper();

  private Judge() {}

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // whatever a library prints is no answer
    var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.write((JSON.writeValueAsString(answer(line)) + "\n").getBytes(StandardCharsets.UTF_8));
      out.flush();
    }
  }

  private static Map<String, Object> answer(String line) {
    try {
      return Map.of("answer", done(JSON.readTree(line)));
    } catch (Throwable error) { // an assertion of Iceberg's is an answer, too
      return Map.of("error", causes(error));
    }
  }

  private static Object done(JsonNode request) throws Exception {
    String command = request.get("do").asText();
    if (command.equals("masters")) {
      request.get("masters").properties().forEach(one -> Kms.keep(one.getKey(), one.getValue()));
      return true;
    }
    if (command.equals("create")) {
      return Writing.create(request);
    }
    FolderOperations operations = FolderOperations.open(request);
    var table = new BaseTable(operations, "judged");
    return switch (command) {
      case "read" -> Reading.rows(table, request);
      case "files" -> Reading.files(table, request);
      case "keys" -> Reading.keys(operations);
      case "snapshots" -> Reading.snapshots(operations);
      case "metadata" -> TableMetadataParser.toJson(operations.current());
      case "commit" -> Writing.commit(operations, table, request);
      default -> throw new IllegalArgumentException("no command: " + command);
    };
  }

  private static List<List<String>> causes(Throwable error) {
    var found = new ArrayList<List<String>>();
    for (Throwable one = error; one != null && found.size() < 10; one = one.getCause()) {
      found.add(List.of(one.getClass().getName(), String.valueOf(one.getMessage())));
    }
    return found;
  }
}

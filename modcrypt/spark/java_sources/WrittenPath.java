package modcrypt;

import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The final path of a file that Spark writes, and the folder of its dataset.
 *
 * Hadoop's FileOutputCommitter, which Spark uses for all file systems by default, moves
 *
 *   OUTPUT/_temporary/0/_temporary/attempt_.../PARTITION/NAME to OUTPUT/PARTITION/NAME
 *
 * where, if partitions are overwritten dynamically, OUTPUT is DATASET/.spark-staging-ID, from which
 * Spark moves the partitions to DATASET. Without "_temporary", the path is final.
 */
final class WrittenPath {
  private static final String OUTPUT = "mapreduce.output.fileoutputformat.outputdir";
  private static final String STAGING = ".spark-staging-";
  private static final int ATTEMPT = 4; // folders above the partitions of an attempt

  final Path dataset; // null if it is unknown
  final Path file;

  private WrittenPath(Path dataset, Path file) {
    this.dataset = dataset;
    this.file = file;
  }

  /** Finds the final path; throws if it is unknown because another committer moves the file. */
  static WrittenPath of(Path path, Configuration configuration) {
    if (path == null) throw unknown(path); // an OutputFile may have none
    String output = configuration.get(OUTPUT);
    if (output == null || output.isEmpty()) {
      checkVisible(path.toUri().getPath().split("/"), path);
      return new WrittenPath(null, path);
    }
    Path folder = new Path(output);
    String inside = PathPrefix.inside(path, folder, configuration);
    if (inside == null) throw unknown(path);
    String[] names = inside.split("/");
    boolean attempt = isAttempt(names);
    if (attempt) names = (String[]) Arrays.copyOfRange(names, ATTEMPT, names.length);
    checkVisible(names, path);
    boolean staged = folder.getName().startsWith(STAGING);
    if (staged && !attempt) throw unknown(path);
    Path dataset = staged ? folder.getParent() : folder;
    String below = dataset.toUri().getPath();
    String end = (below.endsWith("/") ? "" : "/") + String.join("/", names);
    Path file = new Path(path.toUri().getScheme(), path.toUri().getAuthority(), below + end);
    return new WrittenPath(dataset, file);
  }

  private static boolean isAttempt(String[] names) {
    return names.length > ATTEMPT
        && names[0].equals("_temporary")
        && names[1].matches("[0-9]+")
        && names[2].equals("_temporary")
        && names[3].startsWith("attempt_");
  }

  /** Refuses folders that Spark does not read: another committer works in them. */
  private static void checkVisible(String[] names, Path path) {
    for (int n = 0; n < names.length; n++) {
      boolean partition = names[n].contains("="); // of a column with a name like _a
      if (names[n].startsWith(".") || (names[n].startsWith("_") && !partition)) throw unknown(path);
    }
  }

  private static ParquetCryptoRuntimeException unknown(Path path) {
    return new ParquetCryptoRuntimeException(
        "the final path of " + path + " is unknown, and the policy binds the file to it by its AAD"
            + " prefix or by key material beside it; write with Hadoop's FileOutputCommitter and"
            + " without custom partition locations, or use the data source:"
            + " df.write.format(\"modcrypt\")");
  }
}

package modcrypt;

import java.io.IOException;
import java.net.URI;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.impl.OpenFileParameters;

/**
 * A file system whose streams give parquet-java and modcrypt the same footer.
 *
 * parquet-java opens files itself and hands no stream to a factory. But it asks the factory before it
 * opens a file, with the configuration by which it then finds the file system.
 */
public class PinnedFiles extends FilterFileSystem {
  private static final String SAVED = "modcrypt.pinned."; // before the names of replaced settings

  public PinnedFiles() {}

  /** Makes a configuration open the files of a path's file system by this class. */
  static synchronized void install(Configuration configuration, Path path) {
    String scheme = path.toUri().getScheme();
    String name = implementation(
        scheme == null ? FileSystem.getDefaultUri(configuration).getScheme() : scheme);
    if (PinnedFiles.class.getName().equals(configuration.getRaw(name))) return;
    copy(configuration, name, SAVED + name);
    copy(configuration, uncached(name), SAVED + uncached(name));
    configuration.set(uncached(name), "true"); // else Hadoop takes the one that it has opened before
    configuration.set(name, PinnedFiles.class.getName());
  }

  public void initialize(URI uri, Configuration configuration) throws IOException {
    Configuration original = new Configuration(configuration);
    String name = implementation(uri.getScheme());
    copy(original, SAVED + name, name);
    copy(original, SAVED + uncached(name), uncached(name));
    fs = FileSystem.get(uri, original);
    super.initialize(uri, configuration);
  }

  public String getScheme() {
    return fs.getScheme();
  }

  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    long size = getFileStatus(path).getLen();
    return pinned(fs.open(path, bufferSize), path, size);
  }

  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    return createDataInputStreamBuilder(this, path); // the inherited one opens by the other class
  }

  protected CompletableFuture openFileWithOptions(final Path path, OpenFileParameters parameters)
      throws IOException {
    final long size = parameters.getStatus() == null
        ? getFileStatus(path).getLen()
        : parameters.getStatus().getLen();
    return super.openFileWithOptions(path, parameters).thenApply(new Function() {
      public Object apply(Object opened) {
        return pinned((FSDataInputStream) opened, path, size);
      }
    });
  }

  /** Leaves the other file system open: Hadoop shares it. */
  public void close() {}

  private FSDataInputStream pinned(FSDataInputStream opened, Path path, long size) {
    return new FSDataInputStream(new PinnedStream(opened, makeQualified(path), size));
  }

  private static String implementation(String scheme) {
    return "fs." + scheme + ".impl";
  }

  private static String uncached(String name) {
    return name + ".disable.cache";
  }

  private static void copy(Configuration configuration, String from, String to) {
    String value = configuration.getRaw(from);
    if (value == null) {
      configuration.unset(to);
    } else {
      configuration.set(to, value);
    }
  }
}

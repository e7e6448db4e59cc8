import java.io.File;
import java.util.Map;
import java.util.TreeMap;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/** Local files, some of which are elsewhere than their locations say: by prefixes of these. */
final class MappedIO implements FileIO {
  private final Map<String, String> folders;

  MappedIO(Map<String, String> folders) {
    this.folders = new TreeMap<>(folders);
  }

  File file(String location) {
    for (Map.Entry<String, String> one : folders.entrySet()) {
      if (location.startsWith(one.getKey() + "/")) {
        return new File(one.getValue() + location.substring(one.getKey().length()));
      }
    }
    return new File(location.replaceFirst("^file:/+", "/"));
  }

  /** Gives the location that stands for a file. */
  String location(File file) {
    for (Map.Entry<String, String> one : folders.entrySet()) {
      if (file.getPath().startsWith(one.getValue() + "/")) {
        return one.getKey() + file.getPath().substring(one.getValue().length());
      }
    }
    return file.getPath();
  }

  @Override
  public InputFile newInputFile(String path) {
    return new Named(Files.localInput(file(path)), path);
  }

  @Override
  public OutputFile newOutputFile(String path) {
    file(path).getParentFile().mkdirs();
    return new NamedOutput(Files.localOutput(file(path)), path, this);
  }

  @Override
  public void deleteFile(String path) {
    if (!file(path).delete()) {
      throw new IllegalStateException("not deleted: " + path);
    }
  }

  /** A file under the name that the table has for it. */
  private record Named(InputFile file, String location) implements InputFile {
    @Override
    public long getLength() {
      return file.getLength();
    }

    @Override
    public SeekableInputStream newStream() {
      return file.newStream();
    }

    @Override
    public boolean exists() {
      return file.exists();
    }
  }

  private record NamedOutput(OutputFile file, String location, MappedIO files)
      implements OutputFile {
    @Override
    public PositionOutputStream create() {
      return file.create();
    }

    @Override
    public PositionOutputStream createOrOverwrite() {
      return file.createOrOverwrite();
    }

    @Override
    public InputFile toInputFile() {
      return files.newInputFile(location);
    }
  }
}

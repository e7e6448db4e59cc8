import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.iceberg.LocationProviders;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.encryption.EncryptionUtil;
import org.apache.iceberg.encryption.Peek;
import org.apache.iceberg.encryption.PlaintextEncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/**
 * A table in a folder, encrypted as Iceberg's catalog for Hive has its tables.
 *
 * <p>The encryption manager is made of the table's keys and of the master key's id, which the
 * request may bring as a catalog would; a commit adds the keys that the manager has made.
 */
final class FolderOperations implements TableOperations {
  private static final Pattern COUNTED = Pattern.compile("v(\\d+)\\.metadata\\.json");

  private final MappedIO files;
  private final Path folder;
  private final String keyId;
  private final long shift;
  private TableMetadata current;
  private EncryptionManager manager;

  private FolderOperations(MappedIO files, Path folder, String keyId, long shift) {
    this.files = files;
    this.folder = folder;
    this.keyId = keyId;
    this.shift = shift;
  }

  /** Opens the table that a request names by `metadata`: one of its files. */
  static FolderOperations open(JsonNode request) {
    Path metadata = Path.of(request.get("metadata").asText());
    FolderOperations made = of(request, metadata.getParent());
    made.current = made.parsed(metadata);
    return made;
  }

  /** Gives operations of a table whose `metadata/` is that folder, and perhaps not there yet. */
  static FolderOperations of(JsonNode request, Path folder) {
    Map<String, String> map = new HashMap<>();
    request.path("map").properties().forEach(e -> map.put(e.getKey(), e.getValue().asText()));
    String keyId = request.path("key_id").asText(null);
    return new FolderOperations(
        new MappedIO(map), folder, keyId, request.path("shift_ms").asLong(0));
  }

  private TableMetadata parsed(Path file) {
    return TableMetadataParser.read(files.newInputFile(files.location(file.toFile())));
  }

  @Override
  public TableMetadata current() {
    return current;
  }

  @Override
  public TableMetadata refresh() {
    if (!location(version()).equals(current.metadataFileLocation())) { // compared by identity
      current = parsed(file(version()));
      manager = manager == null ? null : made(known());
    }
    return current;
  }

  @Override
  public FileIO io() {
    return EncryptingFileIO.combine(files, encryption());
  }

  @Override
  public EncryptionManager encryption() {
    if (manager == null) {
      manager = made(current == null ? List.of() : current.encryptionKeys());
    }
    return manager;
  }

  private EncryptionManager made(List<EncryptedKey> keys) {
    if (keyId() == null) {
      return PlaintextEncryptionManager.instance();
    }
    var made = EncryptionUtil.createEncryptionManager(keys, properties(), new Kms());
    Peek.shift(made, shift);
    return made;
  }

  /** Gives the keys of the table, and those that the manager has made and not yet committed. */
  private List<EncryptedKey> known() {
    Map<String, EncryptedKey> found = new LinkedHashMap<>();
    current.encryptionKeys().forEach(one -> found.put(one.keyId(), one));
    if (keyId() != null) {
      EncryptionUtil.encryptionKeys(manager).forEach(found::putIfAbsent);
    }
    return new ArrayList<>(found.values());
  }

  private String keyId() {
    return keyId != null || current == null
        ? keyId
        : current.properties().get(TableProperties.ENCRYPTION_TABLE_KEY);
  }

  private Map<String, String> properties() {
    Map<String, String> found = new HashMap<>(current == null ? Map.of() : current.properties());
    found.put(TableProperties.ENCRYPTION_TABLE_KEY, keyId());
    return found;
  }

  @Override
  public void commit(TableMetadata base, TableMetadata changed) {
    TableMetadata metadata = changed;
    if (base == null) {
      current = changed; // its properties say how it is encrypted
    }
    if (keyId() != null) {
      TableMetadata.Builder builder = TableMetadata.buildFrom(changed);
      EncryptionUtil.encryptionKeys(encryption()).values().forEach(builder::addEncryptionKey);
      metadata = builder.build();
    }
    int version = version();
    if (base != null && !base.metadataFileLocation().equals(location(version))) {
      throw new CommitFailedException("somebody else has committed version %s", version);
    }
    publish(metadata, version + 1);
    refresh();
  }

  private void publish(TableMetadata metadata, int version) {
    try {
      Files.createDirectories(folder);
      Path temporary = folder.resolve("." + UUID.randomUUID() + ".metadata.json");
      TableMetadataParser.write(metadata, org.apache.iceberg.Files.localOutput(temporary.toFile()));
      try {
        Files.createLink(file(version), temporary);
      } catch (FileAlreadyExistsException e) {
        throw new CommitFailedException(e, "somebody else has committed version %s", version);
      } finally {
        Files.delete(temporary);
      }
      Files.writeString(folder.resolve("version-hint.text"), String.valueOf(version));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private int version() {
    int newest = 0;
    String[] names = folder.toFile().list();
    for (String name : names == null ? new String[0] : names) {
      Matcher counted = COUNTED.matcher(name);
      newest = counted.matches() ? Math.max(newest, Integer.parseInt(counted.group(1))) : newest;
    }
    return newest;
  }

  /** Gives the path of the current metadata.json. */
  Path newest() {
    return file(version());
  }

  private String location(int version) {
    return files.location(file(version).toFile());
  }

  private Path file(int version) {
    return folder.resolve("v" + version + ".metadata.json");
  }

  @Override
  public String metadataFileLocation(String name) {
    return current.location() + "/metadata/" + name;
  }

  @Override
  public LocationProvider locationProvider() {
    return LocationProviders.locationsFor(current.location(), current.properties());
  }
}

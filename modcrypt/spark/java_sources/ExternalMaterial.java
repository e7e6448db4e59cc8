package modcrypt;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.KeyAccessDeniedException;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The key material of a file in _KEY_MATERIAL_FOR_NAME.json beside it.
 *
 * modcrypt/pkmt1/external.py describes its content, also while the file is being replaced.
 */
final class ExternalMaterial {
  private static final int MAX_STORE = 64 << 20; // bytes: enough for 32,767 columns

  private final Path path;
  private final Map members; // JSON of key material by the name of the key
  private final String write; // id of the run that writes it; null for reading

  private ExternalMaterial(Path path, Map members, String write) {
    this.path = path;
    this.members = members;
    this.write = write;
  }

  /** Returns the empty key material of a new file. */
  static ExternalMaterial create(Path file) {
    byte[] id = FileEncryption.newKey(8);
    String write = String.format("%016x", new Object[] {Long.valueOf(ByteBuffer.wrap(id).getLong())});
    return new ExternalMaterial(pathFor(file), new LinkedHashMap(), write);
  }

  static Path pathFor(Path file) {
    return new Path(file.getParent(), "_KEY_MATERIAL_FOR_" + file.getName() + ".json");
  }

  /** Reads the key material of the file at a path. */
  static ExternalMaterial read(Path file, Configuration configuration) {
    Path path = pathFor(file);
    try {
      FileSystem files = path.getFileSystem(configuration);
      FSDataInputStream in = files.open(path);
      try {
        byte[] data = in.readNBytes(MAX_STORE + 1);
        Map members = data.length > MAX_STORE ? null : Texts.object(data);
        if (members == null) throw damaged(path, "it is not a JSON object, or too long");
        return new ExternalMaterial(path, members, null);
      } finally {
        in.close();
      }
    } catch (FileNotFoundException error) {
      throw new ParquetCryptoRuntimeException(
          path + " does not exist: the keys of the data file are stored in that file, and must be"
              + " moved and copied with it");
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException(
          path + ": the key material can't be read: " + error.getClass().getSimpleName(), error);
    }
  }

  /** Returns the material of a key, under its own name while the file is being replaced. */
  KeyMaterial find(KeyMetadata key) {
    Object text = members.get(key.reference + "-" + key.write);
    if (text == null) text = members.get(key.reference);
    if (text == null) {
      throw new KeyAccessDeniedException(
          path + " contains no key " + Texts.shown(key.reference)
              + ": the key was shredded, or the material belongs to another file");
    }
    if (!(text instanceof String)) throw damaged(path, "a member is not a string");
    Map found = KeyMaterial.members(((String) text).getBytes(StandardCharsets.UTF_8));
    String write = KeyMetadata.write(found); // a rotation by other implementations removes it
    if (write != null && !write.equals(key.write)) {
      throw damaged(path, "the key " + Texts.shown(key.reference) + " in it is another file's");
    }
    return KeyMaterial.of(found);
  }

  /** Adds the material of the footer key or the next column key; returns its key metadata. */
  byte[] add(KeyMaterial material) {
    String name = material.isFooterKey ? "footerKey" : "columnKey" + (members.size() - 1);
    members.put(name, new String(material.encode(write), StandardCharsets.UTF_8));
    return KeyMetadata.encode(name, write);
  }

  /** Writes the material, before the file, with which the committer moves it. */
  void write(Configuration configuration) {
    byte[] data = Texts.json(members);
    if (data.length > MAX_STORE) throw damaged(path, "it is too long to be read");
    try {
      FSDataOutputStream out = path.getFileSystem(configuration).create(path, false);
      try {
        out.write(data);
      } finally {
        out.close();
      }
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException(
          path + ": the key material can't be written: " + error.getClass().getSimpleName(), error);
    }
  }

  private static ParquetCryptoRuntimeException damaged(Path path, String why) {
    return new ParquetCryptoRuntimeException(path + ": the key material is damaged: " + why);
  }
}

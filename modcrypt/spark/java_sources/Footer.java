package modcrypt;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.AesCipher;
import org.apache.parquet.crypto.AesGcmEncryptor;
import org.apache.parquet.crypto.AesMode;
import org.apache.parquet.crypto.ModuleCipherFactory;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.format.AesGcmCtrV1;
import org.apache.parquet.format.AesGcmV1;
import org.apache.parquet.format.EncryptionAlgorithm;
import org.apache.parquet.format.FileCryptoMetaData;
import org.apache.parquet.format.FileMetaData;
import org.apache.parquet.format.Util;

/**
 * The footer of an encrypted file, which modcrypt parses too.
 *
 * parquet-java passes key metadata to a factory, but neither the column that it belongs to nor the
 * algorithm, and nothing at all of plaintext columns.
 */
final class Footer {
  private static final int MAX_FOOTER = 512 << 20; // bytes, as modcrypt's own readers
  private static final int LEAST_MESSAGE_LIMIT = 100 << 20; // parquet-java's default
  private static final int FIRST_READ = 64 << 10;
  private static final int MAGIC = 4;
  private static final int TAIL = 8; // length and magic
  private static final int MODULE_LENGTH = 4; // before nonce, ciphertext and tag
  private static final int SIGNATURE = 28; // nonce and tag

  final boolean encrypted;
  final String algorithm;
  final byte[] keyMetadata; // null if it has none
  final byte[] unique; // aad_file_unique
  final byte[] storedPrefix; // null if it stores none

  private final byte[] data;
  private final int start; // of the encrypted footer in the data
  private FileMetaData metadata;

  private Footer(byte[] data, boolean encrypted) throws IOException {
    this.data = data;
    this.encrypted = encrypted;
    ByteArrayInputStream in = new ByteArrayInputStream(data);
    EncryptionAlgorithm union;
    if (encrypted) {
      FileCryptoMetaData crypto = Util.readFileCryptoMetaData(in);
      union = crypto.getEncryption_algorithm();
      keyMetadata = crypto.getKey_metadata();
    } else {
      metadata = FooterThrift.read(in, null, null, messageLimit());
      union = metadata.getEncryption_algorithm();
      keyMetadata = metadata.getFooter_signing_key_metadata();
    }
    start = data.length - in.available();
    if (union != null && union.isSetAES_GCM_V1()) {
      AesGcmV1 gcm = union.getAES_GCM_V1();
      algorithm = "AES_GCM_V1";
      unique = orEmpty(gcm.getAad_file_unique());
      storedPrefix = gcm.getAad_prefix();
    } else if (union != null && union.isSetAES_GCM_CTR_V1()) {
      AesGcmCtrV1 ctr = union.getAES_GCM_CTR_V1();
      algorithm = "AES_GCM_CTR_V1";
      unique = orEmpty(ctr.getAad_file_unique());
      storedPrefix = ctr.getAad_prefix();
    } else {
      throw new ParquetCryptoRuntimeException("the footer names no known encryption algorithm");
    }
  }

  private static byte[] orEmpty(byte[] value) {
    return value == null ? new byte[0] : value;
  }

  /**
   * Returns the footer that parquet-java has just parsed; authenticates nothing.
   *
   * Where parquet-java opened the file before it asked the factory, as Spark does when it infers a
   * schema, or reads it otherwise, as Comet does, the footer is read again from the path.
   */
  static Footer read(Path path, Configuration configuration) {
    try {
      FileSystem files = path.getFileSystem(configuration);
      byte[] tail = PinnedStream.parsed(files.makeQualified(path));
      if (tail == null) tail = readAgain(files, path);
      boolean encrypted = ascii(tail, tail.length - MAGIC).equals("PARE");
      return new Footer(Arrays.copyOf(tail, tail.length - TAIL), encrypted);
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException(
          path + ": the footer can't be read: " + error.getClass().getSimpleName(), error);
    }
  }

  private static byte[] readAgain(FileSystem files, Path path) throws IOException {
    long size = files.getFileStatus(path).getLen();
    FSDataInputStream in = files.open(path);
    try {
      return readTail(in, size, path);
    } finally {
      in.close();
    }
  }

  /** Returns where parquet-java starts to read: at the length of the footer. */
  static long lengthPosition(long size) {
    return size - TAIL;
  }

  /** Reads the last bytes of a file: the footer, its length and the magic. */
  static byte[] readTail(FSDataInputStream in, long size, Path path) throws IOException {
    byte[] last = readFrom(in, size, (int) Math.min(size, FIRST_READ));
    String magic = last.length < MAGIC + TAIL ? "" : ascii(last, last.length - MAGIC);
    if (!magic.equals("PAR1") && !magic.equals("PARE")) {
      throw new ParquetCryptoRuntimeException(path + ": it is not a Parquet file, or truncated");
    }
    long length = unsigned(last, last.length - TAIL);
    if (length > MAX_FOOTER || length > size - MAGIC - TAIL) {
      throw new ParquetCryptoRuntimeException(
          path + ": declares a footer of " + length + " bytes in a file of " + size
              + " (at most " + MAX_FOOTER + " are read)");
    }
    int count = (int) length + TAIL;
    return count <= last.length
        ? Arrays.copyOfRange(last, last.length - count, last.length)
        : joined(readFrom(in, size - last.length, count - last.length), last);
  }

  /** Reads the bytes before an end. By `seek`, as positioned reads open a local file once more. */
  private static byte[] readFrom(FSDataInputStream in, long end, int count) throws IOException {
    byte[] bytes = new byte[count];
    in.seek(end - count);
    in.readFully(bytes);
    return bytes;
  }

  private static byte[] joined(byte[] first, byte[] second) {
    byte[] both = Arrays.copyOf(first, first.length + second.length);
    System.arraycopy(second, 0, both, first.length, second.length);
    return both;
  }

  /** Returns the limit that Thrift needs; no value in the footer is longer than the footer. */
  private int messageLimit() {
    return Math.max(data.length, LEAST_MESSAGE_LIMIT);
  }

  /** Returns the unsigned 32-bit number at a position, little-endian. */
  private static long unsigned(byte[] data, int at) {
    return ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).getInt(at) & 0xFFFFFFFFL;
  }

  private static String ascii(byte[] data, int from) {
    return new String(data, from, MAGIC, StandardCharsets.US_ASCII);
  }

  /**
   * Authenticates the footer and returns the metadata.
   *
   * @param prefix the AAD prefix of the file; null if it has none.
   */
  FileMetaData open(byte[] key, byte[] prefix) {
    byte[] aad = unique;
    if (prefix != null) {
      aad = Arrays.copyOf(prefix, prefix.length + unique.length);
      System.arraycopy(unique, 0, aad, prefix.length, unique.length);
    }
    byte[] footerAad = AesCipher.createFooterAAD(aad);
    if (!encrypted) {
      verify(key, footerAad);
      return metadata;
    }
    // parquet-java allocates as many bytes as the module declares.
    int left = data.length - start - MODULE_LENGTH;
    if (left < 0 || unsigned(data, start) > left) {
      throw new ParquetCryptoRuntimeException("the footer is damaged: it is cut off");
    }
    ByteArrayInputStream in = new ByteArrayInputStream(data, start, data.length - start);
    try {
      return FooterThrift.read(
          in, ModuleCipherFactory.getDecryptor(AesMode.GCM, key), footerAad, messageLimit());
    } catch (IOException error) {
      throw new ParquetCryptoRuntimeException("the footer is damaged");
    } catch (ParquetCryptoRuntimeException error) {
      throw unauthentic("the footer does not authenticate");
    }
  }

  /** Verifies the signature over the bytes as read. */
  private void verify(byte[] key, byte[] aad) {
    int end = data.length - SIGNATURE;
    if (end != start) throw unauthentic("the signature of the footer is missing");
    byte[] nonce = Arrays.copyOfRange(data, end, end + AesCipher.NONCE_LENGTH);
    AesGcmEncryptor signer = (AesGcmEncryptor) ModuleCipherFactory.getEncryptor(AesMode.GCM, key);
    byte[] sealed = signer.encrypt(false, Arrays.copyOf(data, end), nonce, aad);
    byte[] tag = Arrays.copyOfRange(sealed, sealed.length - AesCipher.GCM_TAG_LENGTH, sealed.length);
    byte[] stored = Arrays.copyOfRange(data, end + AesCipher.NONCE_LENGTH, data.length);
    if (!MessageDigest.isEqual(tag, stored)) {
      throw unauthentic("the signature of the footer does not match");
    }
  }

  private static ParquetCryptoRuntimeException unauthentic(String what) {
    return new ParquetCryptoRuntimeException(
        what + ": wrong footer key, another AAD prefix, or an altered footer");
  }
}

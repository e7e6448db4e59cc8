package modcrypt;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.parquet.format.BlockCipher;
import org.apache.parquet.format.FileMetaData;
import org.apache.parquet.format.Util;
import org.apache.spark.unsafe.Platform;

/** Decoding of a footer's metadata, in each parquet-java that Spark 4 contains. */
final class FooterThrift {
  private static final Class[] LIMITED = {
    InputStream.class, BlockCipher.Decryptor.class, byte[].class, int.class,
  };

  private FooterThrift() {}

  /**
   * Reads metadata, and decrypts it if there is a decryptor.
   *
   * @param limit the most bytes that Thrift accepts; parquet-java before 1.17 (as in Spark 4.1)
   *     sets its own, 100 MB, also when it reads the file for Spark.
   */
  static FileMetaData read(InputStream in, BlockCipher.Decryptor decryptor, byte[] aad, int limit)
      throws IOException {
    try {
      Method method = Util.class.getMethod("readFileMetaData", LIMITED);
      return (FileMetaData) method.invoke(null, new Object[] {in, decryptor, aad, limit});
    } catch (NoSuchMethodException error) {
      return Util.readFileMetaData(in, decryptor, aad);
    } catch (InvocationTargetException error) {
      Platform.throwException(error.getCause());
      return null;
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }
}

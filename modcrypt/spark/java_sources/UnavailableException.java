package modcrypt;

import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The key service can't be reached, or is throttling: worth another attempt. */
public class UnavailableException extends ParquetCryptoRuntimeException {
  public UnavailableException(String message) {
    super(message);
  }
}

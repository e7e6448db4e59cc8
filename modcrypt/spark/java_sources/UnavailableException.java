package modcrypt;

import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/** The key service can't be reached, or is throttling: worth another attempt. */
public class UnavailableException extends ParquetCryptoRuntimeException {
  final boolean throttled; // whether the call was refused for its rate
  final long retryAfter; // milliseconds that the service asks to wait; -1 if it does not

  public UnavailableException(String message) {
    this(message, false, -1);
  }

  UnavailableException(String message, boolean throttled, long retryAfter) {
    super(message);
    this.throttled = throttled;
    this.retryAfter = retryAfter;
  }
}

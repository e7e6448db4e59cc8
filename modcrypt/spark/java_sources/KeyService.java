package modcrypt;

/** A key service that a URI names; its errors hold no key, token or passphrase. */
interface KeyService {
  /** Wraps a key under the newest version of a master key. */
  String wrap(byte[] key, String masterKeyId);

  /** Unwraps what wrap made, under whichever version it was. */
  byte[] unwrap(String wrapped, String masterKeyId);
}

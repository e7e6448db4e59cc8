package modcrypt;

/** A key service that a URI names. Its errors contain no key, token or passphrase. */
interface KeyService {
  /** Wraps a key with the newest version of a master key. */
  String wrap(byte[] key, String masterKeyId);

  /** Unwraps a key that any enabled version of a master key wrapped. */
  byte[] unwrap(String wrapped, String masterKeyId);
}

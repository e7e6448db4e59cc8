package modcrypt;

import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** scrypt (RFC 7914): derives a key from a passphrase, using 128 * n * r bytes of memory. */
public final class Scrypt {
  private Scrypt() {}

  public static byte[] derive(byte[] passphrase, byte[] salt, int n, int r, int p, int length)
      throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    // HMAC pads keys with zeros; SecretKeySpec rejects empty keys.
    byte[] key = passphrase.length == 0 ? new byte[1] : passphrase;
    mac.init(new SecretKeySpec(key, "HmacSHA256"));
    int size = 32 * r;
    byte[] blocks = pbkdf2(mac, salt, 4 * size * p);
    int[] kept = new int[size * n];
    int[] block = new int[size];
    for (int lane = 0; lane < p; lane++) {
      load(blocks, lane * 4 * size, block);
      mix(block, kept, n, r);
      store(block, blocks, lane * 4 * size);
    }
    byte[] derived = pbkdf2(mac, blocks, length);
    Arrays.fill(kept, 0);
    Arrays.fill(block, 0);
    Arrays.fill(blocks, (byte) 0);
    return derived;
  }

  /** PBKDF2 with one iteration, all that scrypt needs; Java's own does not accept bytes. */
  private static byte[] pbkdf2(Mac mac, byte[] salt, int length) {
    byte[] out = new byte[length];
    for (int done = 0, block = 1; done < length; done += 32, block++) {
      mac.update(salt);
      mac.update(new byte[] {
        (byte) (block >>> 24), (byte) (block >>> 16), (byte) (block >>> 8), (byte) block
      });
      byte[] part = mac.doFinal();
      System.arraycopy(part, 0, out, done, Math.min(32, length - done));
    }
    return out;
  }

  /** scryptROMix: fills the memory, then reads it in an order that its content determines. */
  private static void mix(int[] block, int[] kept, int n, int r) {
    int size = 32 * r;
    int[] other = new int[size];
    int[] lane = new int[16];
    for (int i = 0; i < n; i++) {
      System.arraycopy(block, 0, kept, i * size, size);
      mixBlocks(block, other, lane, r);
      System.arraycopy(other, 0, block, 0, size);
    }
    for (int i = 0; i < n; i++) {
      int from = (block[size - 16] & (n - 1)) * size; // n is a power of two
      for (int k = 0; k < size; k++) block[k] ^= kept[from + k];
      mixBlocks(block, other, lane, r);
      System.arraycopy(other, 0, block, 0, size);
    }
    Arrays.fill(other, 0);
  }

  /** scryptBlockMix: even blocks go into the first half, odd ones into the second. */
  private static void mixBlocks(int[] in, int[] out, int[] lane, int r) {
    System.arraycopy(in, 32 * r - 16, lane, 0, 16);
    for (int i = 0; i < 2 * r; i++) {
      int from = i * 16;
      for (int k = 0; k < 16; k++) lane[k] ^= in[from + k];
      salsa(lane);
      System.arraycopy(lane, 0, out, (i / 2 + (i & 1) * r) * 16, 16);
    }
  }

  /** Salsa20/8 on sixteen words. */
  private static void salsa(int[] b) {
    int a0 = b[0], a1 = b[1], a2 = b[2], a3 = b[3], a4 = b[4], a5 = b[5], a6 = b[6], a7 = b[7];
    int a8 = b[8], a9 = b[9], aa = b[10], ab = b[11], ac = b[12], ad = b[13], ae = b[14];
    int af = b[15];
    for (int round = 0; round < 8; round += 2) {
      a4 ^= Integer.rotateLeft(a0 + ac, 7);
      a8 ^= Integer.rotateLeft(a4 + a0, 9);
      ac ^= Integer.rotateLeft(a8 + a4, 13);
      a0 ^= Integer.rotateLeft(ac + a8, 18);
      a9 ^= Integer.rotateLeft(a5 + a1, 7);
      ad ^= Integer.rotateLeft(a9 + a5, 9);
      a1 ^= Integer.rotateLeft(ad + a9, 13);
      a5 ^= Integer.rotateLeft(a1 + ad, 18);
      ae ^= Integer.rotateLeft(aa + a6, 7);
      a2 ^= Integer.rotateLeft(ae + aa, 9);
      a6 ^= Integer.rotateLeft(a2 + ae, 13);
      aa ^= Integer.rotateLeft(a6 + a2, 18);
      a3 ^= Integer.rotateLeft(af + ab, 7);
      a7 ^= Integer.rotateLeft(a3 + af, 9);
      ab ^= Integer.rotateLeft(a7 + a3, 13);
      af ^= Integer.rotateLeft(ab + a7, 18);
      a1 ^= Integer.rotateLeft(a0 + a3, 7);
      a2 ^= Integer.rotateLeft(a1 + a0, 9);
      a3 ^= Integer.rotateLeft(a2 + a1, 13);
      a0 ^= Integer.rotateLeft(a3 + a2, 18);
      a6 ^= Integer.rotateLeft(a5 + a4, 7);
      a7 ^= Integer.rotateLeft(a6 + a5, 9);
      a4 ^= Integer.rotateLeft(a7 + a6, 13);
      a5 ^= Integer.rotateLeft(a4 + a7, 18);
      ab ^= Integer.rotateLeft(aa + a9, 7);
      a8 ^= Integer.rotateLeft(ab + aa, 9);
      a9 ^= Integer.rotateLeft(a8 + ab, 13);
      aa ^= Integer.rotateLeft(a9 + a8, 18);
      ac ^= Integer.rotateLeft(af + ae, 7);
      ad ^= Integer.rotateLeft(ac + af, 9);
      ae ^= Integer.rotateLeft(ad + ac, 13);
      af ^= Integer.rotateLeft(ae + ad, 18);
    }
    b[0] += a0;
    b[1] += a1;
    b[2] += a2;
    b[3] += a3;
    b[4] += a4;
    b[5] += a5;
    b[6] += a6;
    b[7] += a7;
    b[8] += a8;
    b[9] += a9;
    b[10] += aa;
    b[11] += ab;
    b[12] += ac;
    b[13] += ad;
    b[14] += ae;
    b[15] += af;
  }

  private static void load(byte[] in, int at, int[] out) {
    for (int k = 0; k < out.length; k++, at += 4) {
      out[k] = (in[at] & 255) | (in[at + 1] & 255) << 8 | (in[at + 2] & 255) << 16
          | in[at + 3] << 24;
    }
  }

  private static void store(int[] in, byte[] out, int at) {
    for (int k = 0; k < in.length; k++) {
      for (int shift = 0; shift < 32; shift += 8) out[at++] = (byte) (in[k] >>> shift);
    }
  }
}

package modcrypt;

import java.util.concurrent.ThreadLocalRandom;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * The pace of the calls of all threads to one key service, as in modcrypt's Python
 * (modcrypt/kms/pacing.py): while the service throttles, calls start one after another.
 */
final class Pace {
  private static final long UNAVAILABLE_PATIENCE = 20000; // ms of retries without an answer
  private static final long THROTTLED_PATIENCE = 120000; // ms without any granted call
  private static final long MAX_PATIENCE = 86400000;
  private static final long FIRST_WAIT = 200;
  private static final long MAX_WAIT = 10000;
  private static final long DOWN_FOR = 60000;
  private static final double FIRST_INTERVAL = 20; // ms between the starts of calls
  private static final double MAX_INTERVAL = 2000;
  private static final long ADJUST_EVERY = 500;

  private final long patience; // negative for the defaults
  private long granted;
  private double interval;
  private double next = now(); // the clock may be negative
  private long adjusted = now();
  private long downUntil = now();

  Pace(String patience) {
    this.patience = parse(patience);
  }

  private static long parse(String text) {
    if (text == null || text.isEmpty()) return -1;
    if (text.matches("[0-9]{1,9}(\\.[0-9]{1,9})?")) {
      double millis = Double.parseDouble(text) * 1000;
      if (millis <= MAX_PATIENCE) return (long) millis;
    }
    throw new ParquetCryptoRuntimeException(
        "MODCRYPT_KMS_PATIENCE must be a number of seconds, at most a day (86400)");
  }

  private static long now() {
    return System.nanoTime() / 1000000;
  }

  /** The attempts of one call since the last call that was granted. */
  static final class Effort {
    long began = now();
    long granted;
    int attempts;
    boolean hasTurn;
  }

  synchronized Effort begin() {
    Effort effort = new Effort();
    effort.granted = granted;
    return effort;
  }

  /** Waits for the start of a call; a refused call has already waited for its turn. */
  void takeTurn(Effort effort) {
    long wait = 0;
    synchronized (this) {
      if (!effort.hasTurn && interval > 0) wait = reserve(0);
    }
    pause(wait);
  }

  private long reserve(long retryAfter) {
    double begin = Math.max(next, now() + retryAfter);
    next = begin + interval;
    return (long) begin - now();
  }

  synchronized void grant() {
    granted++;
    downUntil = now();
    interval *= 0.85;
    if (interval < FIRST_INTERVAL / 2) interval = 0;
  }

  /** Waits before the next attempt; throws the error if the patience is used up. */
  void waitAfter(UnavailableException error, Effort effort, long sent) {
    pause(planWait(error, effort, sent));
  }

  private synchronized long planWait(UnavailableException error, Effort effort, long sent) {
    long now = now();
    if (error.throttled && effort.granted != granted) { // others are served
      effort.began = sent;
      effort.attempts = 0;
      effort.granted = granted;
    }
    effort.attempts++;
    long ceiling = Math.min(MAX_WAIT, FIRST_WAIT << Math.min(effort.attempts - 1, 20));
    long wait = ThreadLocalRandom.current().nextLong(ceiling + 1);
    if (error.retryAfter >= 0) {
      wait = error.retryAfter + ThreadLocalRandom.current().nextLong(FIRST_WAIT);
    }
    long left = (now < downUntil ? 0 : patienceFor(error)) - (now - effort.began);
    if (left <= 0 || error.retryAfter > left) {
      downUntil = now + DOWN_FOR;
      throw error;
    }
    wait = Math.min(wait, left);
    effort.hasTurn = error.throttled;
    if (error.throttled) {
      if (sent >= adjusted) {
        adjusted = now + ADJUST_EVERY;
        interval = Math.min(MAX_INTERVAL, Math.max(FIRST_INTERVAL, interval * 2));
      }
      wait = Math.max(wait, reserve(Math.max(error.retryAfter, 0)));
    }
    return wait;
  }

  private long patienceFor(UnavailableException error) {
    if (patience >= 0) return patience;
    return error.throttled ? THROTTLED_PATIENCE : UNAVAILABLE_PATIENCE;
  }

  static long time() {
    return now();
  }

  private static void pause(long millis) {
    if (millis <= 0) return;
    try {
      Thread.sleep(millis);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new ParquetCryptoRuntimeException("interrupted while waiting for the key service");
    }
  }
}

package modcrypt;

import java.io.IOException;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanSetReadahead;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;

/**
 * A stream of a file that reads the footer once, and repeats it from memory.
 *
 * parquet-java reads a footer and asks for its key in one thread, so the thread's last stream says
 * which bytes parquet-java has parsed. A local file may be exchanged or overwritten in between.
 */
final class PinnedStream extends FSInputStream
    implements ByteBufferReadable, StreamCapabilities, CanSetReadahead, CanUnbuffer,
        IOStatisticsSource {
  private static final ThreadLocal LAST = new ThreadLocal(); // a WeakReference

  private static final int MAX_COPY = 1 << 20; // bytes at once

  private final FSDataInputStream in;
  private final Path path;
  private final long size; // that parquet-java takes the file to have

  private boolean started;
  private boolean closed;
  private byte[] tail; // footer, length and magic; null if the first read was elsewhere

  PinnedStream(FSDataInputStream in, Path path, long size) {
    this.in = in;
    this.path = path;
    this.size = size;
  }

  /**
   * Returns the last bytes of a file, as this thread has just read them to parse the footer.
   *
   * @return null if the thread has not opened the file by `PinnedFiles`.
   */
  static byte[] parsed(Path path) {
    WeakReference last = (WeakReference) LAST.get();
    PinnedStream stream = last == null ? null : (PinnedStream) last.get();
    if (stream == null || stream.closed || !stream.path.equals(path)) return null;
    if (stream.tail == null) {
      throw new ParquetCryptoRuntimeException(path + ": the file changed while it was opened");
    }
    return stream.tail;
  }

  public synchronized int read(byte[] to, int offset, int length) throws IOException {
    start();
    if (tail == null) return in.read(to, offset, length);
    long left = size - in.getPos();
    if (left > tail.length) {
      return in.read(to, offset, (int) Math.min(length, left - tail.length));
    }
    if (left <= 0) return -1;
    int count = (int) Math.min(left, length);
    System.arraycopy(tail, tail.length - (int) left, to, offset, count);
    in.seek(in.getPos() + count);
    return count;
  }

  public int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xFF;
  }

  /** Reads into a buffer, without a copy if the other stream can and the bytes are no footer. */
  public synchronized int read(ByteBuffer to) throws IOException {
    start();
    boolean direct = in.hasCapability(StreamCapabilities.READBYTEBUFFER);
    if (direct && (tail == null || to.remaining() <= size - tail.length - in.getPos())) {
      return in.read(to);
    }
    byte[] bytes = new byte[Math.min(to.remaining(), MAX_COPY)];
    int count = read(bytes, 0, bytes.length);
    if (count > 0) to.put(bytes, 0, count);
    return count;
  }

  /** Reads the footer into memory if the first read is that of its length. */
  private void start() throws IOException {
    if (started) return;
    started = true;
    LAST.set(new WeakReference(this));
    long position = in.getPos();
    if (position != Footer.lengthPosition(size)) return;
    tail = Footer.readTail(in, size, path);
    in.seek(position);
  }

  public void readVectored(List ranges, IntFunction allocate) throws IOException {
    in.readVectored(ranges, allocate); // pages, which are authenticated
  }

  public int minSeekForVectorReads() {
    return in.minSeekForVectorReads();
  }

  public int maxReadSizeForVectorReads() {
    return in.maxReadSizeForVectorReads();
  }

  public void seek(long position) throws IOException {
    in.seek(position);
  }

  public long getPos() throws IOException {
    return in.getPos();
  }

  public boolean seekToNewSource(long position) throws IOException {
    return in.seekToNewSource(position);
  }

  public int available() throws IOException {
    return in.available();
  }

  public boolean hasCapability(String capability) {
    boolean lacks = capability.equalsIgnoreCase(StreamCapabilities.PREADBYTEBUFFER);
    return !lacks && in.hasCapability(capability);
  }

  public void setReadahead(Long bytes) throws IOException {
    in.setReadahead(bytes);
  }

  public void unbuffer() {
    in.unbuffer();
  }

  public IOStatistics getIOStatistics() {
    return in.getIOStatistics();
  }

  public void close() throws IOException {
    closed = true;
    in.close();
  }
}

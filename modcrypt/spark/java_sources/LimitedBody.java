package modcrypt;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;

/** A body of at most so many bytes; null stands for a longer one, of which no more is read. */
final class LimitedBody implements HttpResponse.BodyHandler, HttpResponse.BodySubscriber {
  private final int limit;
  private final ByteArrayOutputStream read = new ByteArrayOutputStream();
  private final CompletableFuture body = new CompletableFuture();
  private Flow.Subscription source;

  LimitedBody(int limit) {
    this.limit = limit;
  }

  public HttpResponse.BodySubscriber apply(HttpResponse.ResponseInfo info) {
    return this;
  }

  public CompletionStage getBody() {
    return body;
  }

  public void onSubscribe(Flow.Subscription subscription) {
    source = subscription;
    source.request(Long.MAX_VALUE);
  }

  public void onNext(Object item) {
    List buffers = (List) item;
    for (int n = 0; n < buffers.size() && !body.isDone(); n++) {
      ByteBuffer buffer = (ByteBuffer) buffers.get(n);
      if (buffer.remaining() > limit - read.size()) {
        body.complete(null);
        source.cancel();
        return;
      }
      byte[] data = new byte[buffer.remaining()];
      buffer.get(data);
      read.write(data, 0, data.length);
    }
  }

  public void onError(Throwable error) {
    body.completeExceptionally(error);
  }

  public void onComplete() {
    body.complete(read.toByteArray());
  }
}

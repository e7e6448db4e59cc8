package org.apache.iceberg.rest;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.apache.iceberg.rest.requests.RegisterTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.rest.responses.ErrorResponse;

/**
 * A REST catalog over HTTP: Iceberg's own handlers, requests and answers, with tables in a folder.
 *
 * <p>Arguments: port and folder.
 */
public class RestServer {
  private final JdbcCatalog catalog = new JdbcCatalog();

  public static void main(String[] arguments) throws IOException {
    RestServer server = new RestServer(arguments[1]);
    int port = Integer.parseInt(arguments[0]);
    HttpServer http = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    http.setExecutor(Executors.newFixedThreadPool(8));
    http.createContext("/v1/", server::serve);
    http.start();
  }

  private RestServer(String folder) {
    catalog.initialize("rest", Map.of(
        "uri", "jdbc:sqlite:" + folder + "/catalog.db", "jdbc.schema-version", "V1",
        "warehouse", "file://" + folder, "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"));
  }

  private void serve(HttpExchange exchange) throws IOException {
    int status = 200;
    Object answer;
    try (InputStream body = exchange.getRequestBody()) {
      String[] path = exchange.getRequestURI().getRawPath().substring("/v1/".length()).split("/");
      String query = exchange.getRequestURI().getRawQuery();
      answer = answer(exchange.getRequestMethod(), path, query, body.readAllBytes());
    } catch (Exception error) {
      status = status(error);
      answer = ErrorResponse.builder().responseCode(status).withType(error.getClass().getSimpleName())
          .withMessage(String.valueOf(error.getMessage())).withStackTrace(error).build();
    }
    byte[] data = RESTObjectMapper.mapper().writeValueAsBytes(answer);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(status, data.length);
    exchange.getResponseBody().write(data);
    exchange.close();
  }

  private Object answer(String method, String[] path, String query, byte[] body)
      throws IOException {
    boolean post = method.equals("POST");
    if (path[0].equals("config")) {
      return Map.of("defaults", Map.of(), "overrides", Map.of());
    } else if (path.length == 1) {
      return post
          ? CatalogHandlers.createNamespace(catalog, parse(body, CreateNamespaceRequest.class))
          : CatalogHandlers.listNamespaces(catalog, parent(query));
    }
    Namespace namespace = RESTUtil.decodeNamespace(path[1], "%1F");
    if (path.length == 2) {
      return CatalogHandlers.loadNamespace(catalog, namespace);
    } else if (path[2].equals("register")) {
      RegisterTableRequest request = parse(body, RegisterTableRequest.class);
      return CatalogHandlers.registerTable(catalog, namespace, request);
    } else if (path.length == 3 && post) {
      CreateTableRequest request = parse(body, CreateTableRequest.class);
      return request.stageCreate()
          ? CatalogHandlers.stageTableCreate(catalog, namespace, request)
          : CatalogHandlers.createTable(catalog, namespace, request);
    } else if (path.length == 3) {
      return CatalogHandlers.listTables(catalog, namespace);
    }
    TableIdentifier table = TableIdentifier.of(namespace, RESTUtil.decodeString(path[3]));
    if (method.equals("DELETE")) {
      CatalogHandlers.dropTable(catalog, table);
      return Map.of();
    }
    return post
        ? CatalogHandlers.updateTable(catalog, table, parse(body, UpdateTableRequest.class))
        : CatalogHandlers.loadTable(catalog, table, RESTCatalogProperties.SnapshotMode.ALL);
  }

  /** The namespace of a query; as in Iceberg's own servers, its parts are encoded once. */
  private static Namespace parent(String query) {
    if (query == null || !query.startsWith("parent=")) {
      return Namespace.empty();
    }
    String decoded = RESTUtil.decodeString(query.substring("parent=".length()));
    return RESTUtil.namespaceFromQueryParam(decoded);
  }

  private static <T> T parse(byte[] body, Class<T> type) throws IOException {
    return RESTObjectMapper.mapper().readValue(body, type);
  }

  private static int status(Exception error) {
    if (error instanceof NoSuchTableException || error instanceof NoSuchNamespaceException) {
      return 404;
    } else if (error instanceof CommitFailedException || error instanceof AlreadyExistsException) {
      return 409;
    }
    boolean refused = error instanceof IllegalArgumentException
        || error instanceof ValidationException || error instanceof IOException;
    return refused ? 400 : 500;
  }
}

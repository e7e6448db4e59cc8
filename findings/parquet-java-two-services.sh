#!/bin/sh
# parquet-java 1.18.1 names a key service in a file whose keys another service wrapped.
#
# Versions: parquet-hadoop 1.18.1, Hadoop 3.4.2, Java 17.
# Behaviour: clients of key services are cached by access token and instance id, and not by URL or class.
# A process that writes with `parquet.encryption.kms.instance.url` of one service, and within ten minutes
# with that of another, has both files' keys wrapped by the first. The second file names the URL of the
# second service all the same, which never saw its keys.
# Seen: two requests, both at the first URL; the second file names the second URL.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.parquet</groupId><artifactId>parquet-hadoop</artifactId><version>1.18.1</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.2</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
XML
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory=jars

cat > Finding.java <<'JAVA'
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.keytools.*;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroupFactory;
import org.apache.parquet.hadoop.*;
import org.apache.parquet.hadoop.example.*;
import org.apache.parquet.schema.*;

public class Finding {
  static final MessageType SCHEMA = MessageTypeParser.parseMessageType("message rows { required int64 n; }");
  static final List<String> REQUESTS = new ArrayList<>();

  /** A stand-in for a key service, which returns what it was given, and counts requests. */
  public static class Kms implements KmsClient {
    String url;

    public void initialize(Configuration conf, String id, String url, String token) {
      this.url = url;
    }

    public String wrapKey(byte[] key, String master) {
      REQUESTS.add("wrap at " + url);
      return Base64.getEncoder().encodeToString(key);
    }

    public byte[] unwrapKey(String wrapped, String master) {
      REQUESTS.add("unwrap at " + url);
      return Base64.getDecoder().decode(wrapped);
    }
  }

  static Configuration configure(String... settings) {
    Configuration conf = new Configuration();
    conf.set("parquet.crypto.factory.class", PropertiesDrivenCryptoFactory.class.getName());
    conf.setClass("parquet.encryption.kms.client.class", Kms.class, KmsClient.class);
    for (int at = 0; at < settings.length; at += 2) conf.set("parquet.encryption." + settings[at], settings[at + 1]);
    return conf;
  }

  static void write(String path, Configuration conf) throws Exception {
    try (ParquetWriter<Group> writer =
        ExampleParquetWriter.builder(new Path(path)).withConf(conf).withType(SCHEMA).build()) {
      for (long n = 0; n < 3; n++) writer.write(new SimpleGroupFactory(SCHEMA).newGroup().append("n", n));
    }
  }

  public static void main(String[] arguments) throws Exception {
    String[] urls = {"https://one.example", "https://two.example"};
    for (String url : urls)
      write(url.substring(8) + ".parquet", configure("uniform.key", "k", "double.wrapping", "false", "kms.instance.url", url));
    byte[] file = java.nio.file.Files.readAllBytes(java.nio.file.Path.of("two.example.parquet"));
    boolean named = new String(file, java.nio.charset.StandardCharsets.ISO_8859_1).contains(urls[1]);
    System.out.println(REQUESTS + ", the second file names the second URL: " + named);
    if (!named || !REQUESTS.equals(List.of("wrap at " + urls[0], "wrap at " + urls[0])))
      throw new AssertionError("the behaviour has changed");
  }
}
JAVA
mkdir classes
javac -nowarn -cp 'jars/*' -d classes Finding.java
java -cp 'classes:jars/*' Finding

#!/bin/sh
# parquet-java 1.18.1 rotates master keys once an hour: a second rotation wraps nothing.
#
# Versions: parquet-hadoop 1.18.1, Hadoop 3.4.2, Java 17.
# Behaviour: `KeyToolkit.rotateMasterKeys` of a folder with double wrapping unwraps the key encryption
# keys, and wraps new ones under the current version of the master key. Within an hour, a second call in
# the same process returns as normally, but takes the key encryption key of the first one from a cache:
# it writes key material with the same wrapped key, and never asks the key service to wrap one. A master
# key that gets a new version twice in an hour is still used in its older version.
# Seen: an unwrap and a wrap for the first rotation; an unwrap for the second, and the same `wrappedKEK`.
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
    public void initialize(Configuration conf, String id, String url, String token) {}

    public String wrapKey(byte[] key, String master) {
      REQUESTS.add("wrap");
      return Base64.getEncoder().encodeToString(key);
    }

    public byte[] unwrapKey(String wrapped, String master) {
      REQUESTS.add("unwrap");
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

  static String wrappedKek() throws Exception {
    String text = java.nio.file.Files.readString(java.nio.file.Path.of("table/_KEY_MATERIAL_FOR_rows.parquet.json"));
    return text.replaceAll(".*wrappedKEK[^:]*:[^A-Za-z0-9+/]*([A-Za-z0-9+/=]*).*", "$1");
  }

  public static void main(String[] arguments) throws Exception {
    Configuration conf = configure("uniform.key", "k", "key.material.store.internally", "false");
    write("table/rows.parquet", conf);
    List<String> seen = new ArrayList<>();
    Set<String> keys = new LinkedHashSet<>();
    keys.add(wrappedKek());
    for (int rotation = 0; rotation < 2; rotation++) {
      REQUESTS.clear();
      KeyToolkit.rotateMasterKeys("table", conf);
      seen.add(REQUESTS + ", new wrapped key: " + keys.add(wrappedKek()));
    }
    System.out.println(seen);
    if (!seen.equals(List.of("[unwrap, wrap], new wrapped key: true", "[unwrap], new wrapped key: false")))
      throw new AssertionError("the behaviour has changed");
  }
}
JAVA
mkdir classes
javac -nowarn -cp 'jars/*' -d classes Finding.java
java -cp 'classes:jars/*' Finding

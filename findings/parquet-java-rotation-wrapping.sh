#!/bin/sh
# parquet-java 1.18.1 changes single wrapping into double wrapping when it rotates master keys.
#
# Versions: parquet-hadoop 1.18.1, Hadoop 3.4.2, Java 17.
# Behaviour: files were written with `parquet.encryption.double.wrapping` false, so that the key service
# itself wraps each data key. `KeyToolkit.rotateMasterKeys` keeps the ids of the master keys, but not the
# way of wrapping: it follows the configuration of the caller, whose default is true. A reader needs
# nothing said, so a job for rotation seldom sets it, and the data keys are then wrapped outside of the
# key service.
# Seen: "doubleWrapping":false before, "doubleWrapping":true after, and the file is read by both.
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

  /** A stand-in for a key service, which returns what it was given. */
  public static class Kms implements KmsClient {
    public void initialize(Configuration conf, String id, String url, String token) {}

    public String wrapKey(byte[] key, String master) {
      return Base64.getEncoder().encodeToString(key);
    }

    public byte[] unwrapKey(String wrapped, String master) {
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

  static int read(String path, Configuration conf) throws Exception {
    int rows = 0;
    try (ParquetReader<Group> reader = ParquetReader.builder(new GroupReadSupport(), new Path(path)).withConf(conf).build()) {
      while (reader.read() != null) rows++;
    }
    return rows;
  }

  static boolean isDoublyWrapped() throws Exception {
    String text = java.nio.file.Files.readString(java.nio.file.Path.of("table/_KEY_MATERIAL_FOR_rows.parquet.json"));
    System.out.println(text);
    return text.contains("doubleWrapping\\\":true");
  }

  public static void main(String[] arguments) throws Exception {
    write("table/rows.parquet", configure("uniform.key", "k", "key.material.store.internally", "false", "double.wrapping", "false"));
    List<Object> seen = new ArrayList<>();
    Configuration conf = configure();
    seen.add(isDoublyWrapped());
    seen.add(read("table/rows.parquet", conf));
    KeyToolkit.rotateMasterKeys("table", conf);
    seen.add(isDoublyWrapped());
    seen.add(read("table/rows.parquet", conf));
    System.out.println(seen);
    if (!seen.equals(List.of(false, 3, true, 3))) throw new AssertionError("the behaviour has changed");
  }
}
JAVA
mkdir classes
javac -nowarn -cp 'jars/*' -d classes Finding.java
java -cp 'classes:jars/*' Finding

#!/bin/sh
# parquet-java 1.18.1 refuses to overwrite a file, and has by then replaced the file's key material.
#
# Versions: parquet-hadoop 1.18.1, Hadoop 3.4.2, Java 17.
# Behaviour: with key material outside of the files, a writer in mode CREATE (the default) first writes
# `_KEY_MATERIAL_FOR_...json`, over the one that is there, and then finds that the Parquet file exists.
# The error says that the file already exists. The file is as it was, but its wrapped keys are gone, so
# that nobody can read it again.
# Seen: 3 rows before; "FileAlreadyExistsException: File already exists"; then "GCM tag check failed".
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

  public static void main(String[] arguments) throws Exception {
    Configuration conf = configure("uniform.key", "k", "key.material.store.internally", "false");
    List<String> seen = new ArrayList<>();
    write("rows.parquet", conf);
    seen.add(read("rows.parquet", conf) + " rows");
    try {
      write("rows.parquet", conf);
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException error) {
      System.out.println(error.getMessage());
      seen.add("exists");
    }
    try {
      seen.add(read("rows.parquet", conf) + " rows");
    } catch (org.apache.parquet.crypto.TagVerificationException error) {
      seen.add(error.getMessage());
    }
    System.out.println(seen);
    if (!seen.equals(List.of("3 rows", "exists", "GCM tag check failed"))) throw new AssertionError("the behaviour has changed");
  }
}
JAVA
mkdir classes
javac -nowarn -cp 'jars/*' -d classes Finding.java
java -cp 'classes:jars/*' Finding

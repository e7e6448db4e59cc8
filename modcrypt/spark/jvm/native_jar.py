"""The jar that connects parquet-java and Iceberg to our key services: compiled, written, loaded.

pyspark contains the compiler Janino, but no clients of key services. Our classes (`java_sources`)
support the local keyring, Vault's transit engine, the key services of AWS, Google and Azure, and
PKCS#11 tokens. They need only Spark's own jars, and the client for Iceberg also Iceberg's.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from modcrypt import __version__
from modcrypt.io.destinations import open_sink
from modcrypt.runtime.extras import missing_extra
from modcrypt.spark.jvm.java_home import java_home
from modcrypt.spark.procedures import write_java_source

FACTORY = "modcrypt.ModcryptCryptoFactory"
"""Our class that gives parquet-java the keys of files by a policy, and checks the files."""

ICEBERG_CLIENT = "modcrypt.ModcryptKeyManagementClient"
"""Our class for Iceberg's catalog property `encryption.kms-impl`."""

MAVEN = ("modcrypt", "modcrypt-spark")
"""Group and artefact id of the jar, whose version is modcrypt's."""


def spark_jar(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the jar with which any Spark 4 can read and write with our key services.

    Distribute it to a cluster by `spark.jars` or `spark-submit --jars`; `native` then does not need
    to compile one. This function starts a JVM to compile the jar.

    Args:
        path: Path of the jar.
        overwrite: Whether to replace an existing file.

    Raises:
        FileExistsError: The file exists.
        ModuleNotFoundError: pyspark or Java is not installed.
    """
    with open_sink(path, overwrite=overwrite) as sink, _start_jvm() as jvm:
        sink.append(build_jar(compile_sources(jvm)))


def spark_repository(folder: str | os.PathLike[str], *, overwrite: bool = False) -> str:
    """Write the jar into a Maven repository, from which `--packages` takes it.

    Args:
        folder: Folder of the repository, which may be new.
        overwrite: Whether to replace existing files of this version.

    Returns:
        The coordinates for `--packages`; pass the folder's URL to `--repositories`.

    Raises:
        FileExistsError, ModuleNotFoundError: As `spark_jar`.
    """
    group, artifact = MAVEN
    place = Path(folder, group, artifact, __version__)
    place.mkdir(parents=True, exist_ok=True)
    spark_jar(place / f"{artifact}-{__version__}.jar", overwrite=overwrite)
    with open_sink(place / f"{artifact}-{__version__}.pom", overwrite=overwrite) as sink:
        sink.append(_POM.encode())
    return f"{group}:{artifact}:{__version__}"


def compile_sources(jvm: Any) -> dict[str, bytes]:
    """Compile the sources in a JVM with Spark's jars, and return class files by class name."""
    janino, tools = jvm.org.codehaus.janino, jvm.org.codehaus.commons.compiler.util.resource
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    classes = jvm.java.util.HashMap()
    compiler = janino.Compiler()
    compiler.setIClassLoader(janino.ClassLoaderIClassLoader(loader))
    compiler.setTargetVersion(8)  # from which on static methods of interfaces can be called
    compiler.setClassFileCreator(tools.MapResourceCreator(classes))
    texts = {**_read_sources(), "modcrypt/Procedures.java": write_java_source()}
    units = jvm.java.lang.reflect.Array.newInstance(
        jvm.java.lang.Class.forName("org.codehaus.commons.compiler.util.resource.Resource"),
        len(texts),
    )
    for number, (name, text) in enumerate(texts.items()):
        units[number] = tools.StringResource(name, text)
    compiler.compile(units)
    # Iceberg's interface was compiled from a source of ours; the jar must not hide Iceberg's own.
    return {str(name): bytes(classes[name]) for name in classes if name.startswith("modcrypt/")}


def _read_sources() -> dict[str, str]:
    folders = {"java_sources": "modcrypt", "java_interfaces": "org/apache/iceberg/encryption"}
    return {
        f"{package}/{file.name}": file.read_text("utf-8")
        for folder, package in folders.items()
        for file in sorted((files("modcrypt.spark") / folder).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".java")
    }


_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{MAVEN[0]}</groupId>
  <artifactId>{MAVEN[1]}</artifactId>
  <version>{__version__}</version>
</project>
"""


def build_jar(classes: Mapping[str, bytes]) -> bytes:
    """Return a jar of class files, described as a Maven artefact; the result is deterministic."""
    group, artifact = MAVEN
    about = f"META-INF/maven/{group}/{artifact}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(
            zipfile.ZipInfo("META-INF/MANIFEST.MF"),
            f"Manifest-Version: 1.0\r\nImplementation-Version: {__version__}\r\n\r\n",
        )
        jar.writestr(zipfile.ZipInfo(f"{about}/pom.xml"), _POM)
        jar.writestr(
            zipfile.ZipInfo(f"{about}/pom.properties"),
            f"groupId={group}\nartifactId={artifact}\nversion={__version__}\n",
        )
        for name in sorted(classes):
            jar.writestr(zipfile.ZipInfo(name), classes[name])
    return buffer.getvalue()


@contextmanager
def _start_jvm() -> Iterator[Any]:
    """Start a JVM with Spark's jars but without Spark, and stop it at the end."""
    try:
        import pyspark
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    except ModuleNotFoundError as error:
        raise missing_extra("Spark", "spark") from error
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    port, token, process = launch_gateway(
        classpath=str(Path(home) / "jars" / "*"),
        java_path=str(Path(java_home()) / "bin" / "java"),
        # It lives for seconds, so the optimising compiler costs more than it saves.
        javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(30)


def bring_jar(spark: Any) -> None:
    """Make our classes available to a session's driver and executors, unless they already are."""
    # A session of Spark Connect can't add jars; its server has to start with one.
    if not hasattr(spark, "newSession"):
        raise TypeError(f"spark must be a Spark session, not {type(spark).__name__}")
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        _add_jar(spark.sparkContext)


def _add_jar(context: Any) -> None:
    """Load the jar in the driver, and send it to executors, unless this was done before."""
    jvm = context._jvm
    loader = context._jsc.hadoopConfiguration().getClassLoader()
    jar = _find_loaded_jar(jvm, loader)
    if jar is None or not jar.is_file():  # the jar was deleted with an earlier context
        is_loaded = jar is not None
        data = build_jar(compile_sources(jvm))
        jar = Path(context._temp_dir) / f"modcrypt-{hashlib.sha256(data).hexdigest()[:16]}.jar"
        jar.write_bytes(data)
        if not is_loaded:
            _load(jvm, context._jsc.hadoopConfiguration(), loader, jar)
    sent = context._jsc.sc().listJars()
    if jar.name not in {Path(sent.apply(number)).name for number in range(sent.size())}:
        context._jsc.addJar(jar.as_uri())


def _find_loaded_jar(jvm: Any, loader: Any) -> Path | None:
    """Return the jar from which the driver loaded the class; None if it has not loaded it."""
    if (resource := loader.getResource(f"{FACTORY.replace('.', '/')}.class")) is None:
        return None
    jar = resource.openConnection().getJarFileURL()
    return Path(jvm.java.nio.file.Paths.get(jar.toURI()).toString())


def _load(jvm: Any, configuration: Any, loader: Any, jar: Path) -> None:
    url = jvm.java.net.URI(jar.as_uri()).toURL()
    if loader.getClass().getSimpleName() == "MutableURLClassLoader":
        loader.addURL(url)
    else:
        urls = jvm.java.lang.reflect.Array.newInstance(url.getClass(), 1)
        urls[0] = url
        configuration.setClassLoader(jvm.java.net.URLClassLoader(urls, loader))

"""The jar that gives parquet-java our key services: its Java sources, compiled by Spark's Janino.

pyspark brings a compiler, but no key service's client. The classes take the local keyring and
Vault's transit engine (`java_sources`), and nothing but Spark's own jars.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from modcrypt.io.storage import open_sink
from modcrypt.kms.uris import missing_extra
from modcrypt.spark.jvm.java_home import java_home

__all__ = ["FACTORY", "KMS_CLIENT", "compiled", "jar_bytes", "spark_jar"]

FACTORY = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
"""Class by which parquet-java takes keys from a client of a key service."""

KMS_CLIENT = "modcrypt.ModcryptKmsClient"
"""Class that is parquet-java's client of a key service."""


def spark_jar(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the jar with which any Spark 4 can read and write by our key services.

    A cluster gets it by `spark.jars` or `spark-submit --jars`; `native` then needs to bring none.
    A JVM is started to compile it.

    Args:
        path: of the jar.
        overwrite: whether it may replace a file.

    Raises:
        FileExistsError: there is a file.
        ModuleNotFoundError: there is no pyspark, or no Java.
    """
    with open_sink(path, overwrite=overwrite) as sink, _jvm() as jvm:
        sink.append(jar_bytes(compiled(jvm)))


def compiled(jvm: Any) -> dict[str, bytes]:
    """Compile the sources in a JVM that has Spark's jars; gives class files by class name."""
    janino, tools = jvm.org.codehaus.janino, jvm.org.codehaus.commons.compiler.util.resource
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    classes = jvm.java.util.HashMap()
    compiler = janino.Compiler()
    compiler.setIClassLoader(janino.ClassLoaderIClassLoader(loader))
    compiler.setClassFileCreator(tools.MapResourceCreator(classes))
    texts = _sources()
    units = jvm.java.lang.reflect.Array.newInstance(
        jvm.java.lang.Class.forName("org.codehaus.commons.compiler.util.resource.Resource"),
        len(texts),
    )
    for number, (name, text) in enumerate(texts.items()):
        units[number] = tools.StringResource(name, text)
    compiler.compile(units)
    return {str(name): bytes(classes[name]) for name in classes}


def jar_bytes(classes: Mapping[str, bytes]) -> bytes:
    """Pack class files; the same classes make the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), "Manifest-Version: 1.0\r\n\r\n")
        for name in sorted(classes):
            jar.writestr(zipfile.ZipInfo(name), classes[name])
    return packed.getvalue()


def _sources() -> dict[str, str]:
    folder = files("modcrypt.spark") / "java_sources"
    names = sorted(one.name for one in folder.iterdir() if one.name.endswith(".java"))
    return {f"modcrypt/{name}": (folder / name).read_text("utf-8") for name in names}


@contextmanager
def _jvm() -> Iterator[Any]:
    """Start a JVM with Spark's jars in it, without Spark itself, and stop it."""
    try:
        import pyspark
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    except ModuleNotFoundError as error:
        raise missing_extra("Spark", "spark") from error
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    port, token, process = launch_gateway(
        classpath=str(Path(home) / "jars" / "*"),
        java_path=str(Path(java_home()) / "bin" / "java"),
        javaopts=["-Dlog4j2.level=OFF"],
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

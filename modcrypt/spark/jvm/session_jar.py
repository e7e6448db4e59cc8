"""Our jar in a running Spark: loaded by the driver, and sent to executors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from modcrypt.spark.jvm.native_jar import FACTORY, build_jar, compile_sources


def bring_jar(spark: Any) -> None:
    """Make our classes available to a session's driver and executors, unless they already are.

    A session of Spark Connect can't add jars; its server has to start with one.
    """
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
    if jar.name not in {Path(url).name for url in _list_jars(context)}:
        context._jsc.addJar(jar.as_uri())


def _find_loaded_jar(jvm: Any, loader: Any) -> Path | None:
    """Return the jar from which the driver loaded the class; None if it has not loaded it."""
    resource = loader.getResource(f"{FACTORY.replace('.', '/')}.class")
    if resource is None:
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


def _list_jars(context: Any) -> list[str]:
    jars = context._jsc.sc().listJars()
    return [jars.apply(number) for number in range(jars.size())]

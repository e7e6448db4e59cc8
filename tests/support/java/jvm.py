"""A JVM with the jars of the PyPI package ``pyspark`` in it, which py4j starts; Spark never starts.

What is said in Java is a class ``Harness``, compiled by Janino (also among those jars) when the
JVM has started.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a JVM that lives for seconds, and spends most of them on compiling what runs a few times."""


class JavaError(Exception):
    """An exception in Java.

    ``causes`` has the class name and message of every exception in its chain, outermost
    first; ``java_class`` and ``message`` are those of the last, the root cause.
    """

    def __init__(self, causes: Sequence[tuple[str, str]]) -> None:
        self.causes = tuple(causes)
        self.java_class, self.message = self.causes[-1]
        super().__init__(" <- ".join(f"{name}: {text}" for name, text in causes))


def why_unavailable() -> str | None:
    """Why no JVM can run here, as a reason to skip a test; None if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return None if "JAVA_HOME" in os.environ or shutil.which("java") else "there is no Java"


def pyspark_jars() -> Path:
    """Return the folder of pyspark's jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed")
    return Path(spec.origin).parent / "jars"


@contextmanager
def plain_py4j() -> Iterator[None]:
    """Let py4j raise its own errors.

    pyspark has the JVM of Spark explain errors, also those of another JVM, which it can't.
    """
    import py4j.java_gateway
    import py4j.protocol

    theirs = py4j.java_gateway.get_return_value
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    try:
        yield
    finally:
        py4j.java_gateway.get_return_value = theirs


@contextmanager
def java_errors(kind: type[JavaError]) -> Iterator[None]:
    """Raise what fails in Java as ``kind``."""
    from py4j.protocol import Py4JJavaError

    try:
        with plain_py4j():
            yield
    except Py4JJavaError as error:
        causes, cause = [], error.java_exception
        while cause is not None:
            causes.append((cause.getClass().getName(), str(cause.getMessage())))
            cause = cause.getCause()
        raise kind(causes) from None


class Jvm:
    """A running JVM: its ``packages``, and an object of the ``Harness`` that ``source`` spells."""

    def __init__(self, source: str, *, heap: str, jars: Iterable[Path] = ()) -> None:
        from py4j import protocol
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        # py4j's own goes through a list of all bytes: a tenth of a second for a megabyte.
        protocol.OUTPUT_CONVERTER[protocol.BYTES_TYPE] = lambda text, _: b64decode(text)
        port, token, self._process = launch_gateway(
            classpath=os.pathsep.join(map(str, [pyspark_jars() / "*", *jars])),
            javaopts=[f"-Xmx{heap}", *SHORT_LIVED, "-Dlog4j2.level=OFF"],
            java_path=None,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.packages: Any = self._gateway.jvm
        compiler = self.packages.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source)
        self.harness: Any = compiler.getClassLoader().loadClass("Harness").newInstance()

    def close(self) -> None:
        """Stop it."""
        self._gateway.shutdown()
        self._process.stdin.close()
        self._process.wait(120)


def stop_spark(session: Any) -> None:
    """Stop Spark and its JVM, so that another test may have one of other settings."""
    session.stop()
    end_spark_jvm()


def end_spark_jvm() -> None:
    """End the JVM of a Spark that was stopped, if there is one; it keeps its class path."""
    import py4j.java_gateway
    import py4j.protocol
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    # Spark has py4j turn Java's exceptions into its own, for whatever other JVM, too.
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    SparkContext._gateway = SparkContext._jvm = None

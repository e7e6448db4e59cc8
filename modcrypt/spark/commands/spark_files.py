"""`modcrypt spark`: the files with which Spark brings modcrypt to a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import cloup

from modcrypt.cli.shared import print_json
from modcrypt.cli.shared_options import VerbGroup, option

_JAR = """\
{path}: pass it to Spark, and the URI of the key service, for example

  spark-submit --jars {path} \\
    --conf spark.hadoop.parquet.crypto.factory.class={factory} \\
    --conf 'spark.hadoop.modcrypt.kms.uri=file:/etc/lake.keyring?passphrase=file:/run/lake.pass'

and, to write or to check what is read, a policy, spark.hadoop.modcrypt.policy=..., for which
modcrypt.spark.native_options(policy) returns all options; or, in Python,
modcrypt.spark.native(spark, policy=...) in a session that has the jar."""

_REPOSITORY = """\
{path}: pass it to Spark in place of --jars:

  spark-submit --repositories {url} --packages {coordinates}"""

_PACKAGE = """\
{path}: modcrypt and its dependencies, for Python {python}; for example

  PYSPARK_DRIVER_PYTHON=python PYSPARK_PYTHON=python{python} spark-submit \\
    --archives {path}#deps --conf spark.executorEnv.PYTHONPATH=deps

PYSPARK_DRIVER_PYTHON must have modcrypt installed; PYSPARK_PYTHON is that of the executors."""

_ALONE = """\
{path}: modcrypt alone, for executors that have its dependencies:

  spark-submit --py-files {path}"""


@cloup.group("spark", cls=VerbGroup, short_help="Write the files that a Spark cluster needs.")
def spark() -> None:
    """Write the jar for Spark's JVM, and the package for the Python of its executors."""


@spark.command("jar", short_help="Write a jar for Spark's own Parquet, SQL and Iceberg.")
@click.argument("destination")
@option("--repository", help="DESTINATION is a Maven repository, for --packages.")
def jar(destination: str, repository: bool, force: bool, as_json: bool) -> None:
    """Write a jar with which Spark's own Parquet, SQL and Iceberg use the keys of a key service.

    Needs pyspark and Java 17 or 21. DESTINATION is the path of the jar, or a folder.
    """
    from modcrypt.spark.jvm import native_jar

    if repository:
        coordinates = native_jar.spark_repository(destination, overwrite=force)
        url = Path(destination).absolute().as_uri()
        told = {"url": url, "coordinates": coordinates}
        _report(destination, _REPOSITORY, as_json, told)
    else:
        native_jar.spark_jar(destination, overwrite=force)
        _report(destination, _JAR, as_json, {}, factory=native_jar.FACTORY)


@spark.command("package", short_help="Write a zip of modcrypt for executors.")
@click.argument("destination")
@option("--alone", help="Leave out the dependencies, for --py-files instead of --archives.")
@option("--extra NAME...", "extras", help="Include an extra, such as aws.")
def package(
    destination: str, alone: bool, extras: tuple[str, ...], force: bool, as_json: bool
) -> None:
    """Write a zip of modcrypt and its dependencies, as installed here, for executors.

    The executors need the version of Python, and the kind of machine, that the command runs on.
    DESTINATION is the path of the zip.
    """
    from modcrypt.spark.shipping import spark_package

    if alone and extras:
        raise click.UsageError("--alone leaves out extras; install them on the executors")
    spark_package(destination, alone=alone, extras=extras, overwrite=force)
    python = ".".join(map(str, sys.version_info[:2]))
    _report(destination, _ALONE if alone else _PACKAGE, as_json, {}, python=python)


def _report(destination: str, text: str, as_json: bool, facts: dict[str, Any], **more: Any) -> None:
    if as_json:
        is_folder = os.path.isdir(destination)
        size = {} if is_folder else {"destination_bytes": os.path.getsize(destination)}
        print_json("spark.files", {"destination": destination, **size, **facts})
    else:
        click.echo(text.format(path=destination, **facts, **more), err=True)

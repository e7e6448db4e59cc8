"""`modcrypt spark-jar`: a jar that connects Spark's own Parquet with modcrypt's key services."""

from __future__ import annotations

import json
import os

import click
import cloup

from modcrypt.cli.shared import force_option, json_option, print_line

_USE = """\
{path}: pass it to Spark, and the URI of the key service, for example

  spark-submit --jars {path} \\
    --conf spark.hadoop.parquet.crypto.factory.class={factory} \\
    --conf 'spark.hadoop.modcrypt.kms.uri=file:/etc/lake.keyring?passphrase=file:/run/lake.pass'

and, to write or to check what is read, a policy, spark.hadoop.modcrypt.policy=..., for which
modcrypt.spark.native_options(policy) returns all options; or, in Python,
modcrypt.spark.native(spark, policy=...) in a session that has the jar."""


@cloup.command("spark-jar", short_help="Write a jar for Spark's own Parquet.")
@click.argument("destination")
@force_option
@json_option
def spark_jar(destination: str, force: bool, as_json: bool) -> None:
    """Write a jar with which Spark's own Parquet uses the keys of a key service.

    Needs pyspark and Java 17 or 21. DESTINATION is the path of the jar.
    """
    from modcrypt.spark.jvm import native_jar

    native_jar.spark_jar(destination, overwrite=force)
    if as_json:
        size = os.path.getsize(destination)
        print_line(json.dumps({"destination": destination, "destination_bytes": size}))
    else:
        text = _USE.format(path=destination, factory=native_jar.FACTORY)
        click.echo(text, err=True)

"""Spark with jars of others, such as Comet or Delta, which they have for some versions of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark

from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.central_jars import fetch_jars
from tests.support.spark.native import uri_of
from tests.support.spark.processes import Elsewhere

SPARK = ".".join(pyspark.__version__.split(".")[:2])


@contextmanager
def extended_spark(
    folder: Path, jar: str, settings: Mapping[str, str], *, owner: str = ""
) -> Iterator[Elsewhere]:
    """Run a Spark with a jar; skip the test if Maven Central has none for this Spark.

    `jar` has Maven's coordinates, with `{spark}` for Spark's version; of the jars that it brings,
    Spark gets those whose names begin with `owner`.
    """
    jars = fetch_jars(folder, jar.format(spark=SPARK))
    path = ":".join(str(found) for found in jars if found.name.startswith(owner))
    also = {f"spark.{who}.extraClassPath": path for who in ("driver", "executor")}
    with closing(Elsewhere("local[2]", folder, {**settings, **also})) as running:
        yield running


def write_policy(ring: Keyring, folder: Path, column: str | None = None) -> Path:
    """Write a policy, by default without a key of a column."""
    path = folder / "lake.policy"
    keys = "" if column is None else f'column_keys = {{ kc2 = ["{column}"] }}\n'
    path.write_text(f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\n{keys}')
    return path

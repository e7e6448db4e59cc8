"""Jobs on tables as SQL procedures, in a catalog without tables.

    register_sql(spark, policy="/etc/lake.policy")
    spark.sql("CALL modcrypt.verify('/lake/people')")

Where no Python runs at the start, as in `spark-sql` or a Thrift server, configure the same:
`--jars modcrypt.jar --conf spark.sql.catalog.modcrypt=modcrypt.SqlCatalog`.
"""

from __future__ import annotations

import os
from typing import Any

from modcrypt.spark.jvm.native_jar import bring_jar

CATALOG = "spark.sql.catalog.modcrypt"
"""Name of the configuration of the catalog, whose value is the name of its class."""


def register_sql(spark: Any, *, policy: str | os.PathLike[str] | None = None) -> None:
    """Let SQL run jobs on tables: `CALL modcrypt.encrypt(...)`, `rekey`, `rotate` and others.

    The jar is added as by `native`. Register before the session's first call: Spark keeps a
    session's catalogs.

    Args:
        spark: Spark session; also of Spark Connect, if its server was started with the jar.
        policy: Path of the policy of calls that name no keys; the driver reads it for each call.

    Raises:
        TypeError: `spark` is not a session.
    """
    bring_jar(spark)
    spark.conf.set(CATALOG, "modcrypt.SqlCatalog")
    if policy is not None:
        spark.conf.set(f"{CATALOG}.policy", os.path.abspath(policy))

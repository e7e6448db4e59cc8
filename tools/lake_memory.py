"""Measure the peak memory of a lake's verbs at many files: `python -m tools.lake_memory 1000000`.

Listing and footers are simulated: one real file stands for all of them, under names that a listing
would yield. Everything else is real: states, cache, plan, results and totals. Each verb runs in a
process of its own, and its peak is that of the process (`ru_maxrss`).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
from modcrypt.lake.applying import application
from modcrypt.lake.applying.application import AppliedFile
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.lake_files import LakeFile, LakeFiles
from modcrypt.lake.verification.file_check import CheckedFile, FileCheck
from modcrypt.parquet.verify.file_verification import FileAad

VERBS = ("status", "status again", "plan", "apply", "verify", "verify again", "report")
DECLARATION = """\
kms = "file:lake.keyring"

[dataset.orders]
location = "orders"
footer_key = "footer"
aad_prefix = "orders/{path}"
"""


def make_lake(folder: Path) -> Path:
    """Make a lake with one encrypted file; return its declaration."""
    mc.Keyring.create(folder / "lake.keyring", plaintext=True).create_key("footer")
    (folder / "modcrypt.toml").write_text(DECLARATION)
    (folder / "orders").mkdir()
    pq.write_table(pa.table({"id": [1], "name": ["a"]}), folder / "orders/only.parquet")
    mc.Lake.open(folder / "modcrypt.toml").apply()
    return folder / "modcrypt.toml"


def simulate(files: int, state: str) -> ExitStack:
    """Let a listing yield many files, and each of them be in a state like the only real one."""
    examine, verify = FooterExamination.run, FileCheck._verify
    real = LakeFile("only.parquet", 1, "x")
    once: dict[str, Any] = {}

    def list_many(self: LakeFiles) -> Iterator[LakeFile]:
        for number in range(files):
            path = f"day={number // 1000:06}/part-{number % 1000:04}-{number:040x}.parquet"
            yield LakeFile(path, 1000, f"{number} 1000")

    def run_many(self: FooterExamination, file: LakeFile) -> Any:
        if "state" not in once:
            once["state"] = examine(self, real)
        return replace(once["state"], path=file.path, state=state)

    def verify_many(self: Any, file: LakeFile, threads: int | None) -> Any:
        if "verified" not in once:
            once["verified"] = verify(self, real, threads)[1]
        name = file.path.encode()
        return CheckedFile(FileAad(name, name[-40:]), replace(once["verified"], path=file.path))

    def apply_many(policies: Any, planned: Any) -> AppliedFile:
        return AppliedFile(path=planned.state.path, result="rekeyed")

    stack = ExitStack()
    for owner, name, function in (
        (LakeFiles, "__iter__", list_many),
        (FooterExamination, "run", run_many),
        (FileCheck, "_verify", verify_many),
        (application, "_convert_file", apply_many),
    ):
        stack.enter_context(mock.patch.object(owner, name, function))
    return stack


def run_verb(config: Path, verb: str, files: int) -> dict[str, Any]:
    """Run a verb in this process; return its peak memory and duration."""
    lake, started = mc.Lake.open(config), time.perf_counter()
    with simulate(files, "other-policy" if verb in ("plan", "apply") else "declared"):
        if verb in ("plan", "apply"):
            (done,) = lake.apply(dry_run=verb == "plan")
            assert len(done.plan.files) == files
            result = done.summary()
        elif verb.startswith("verify"):
            (verified,) = lake.verify(since="last" if verb == "verify again" else None)
            assert verified.code == 0
            result = verified.summary()
        elif verb == "report":
            result = f"{len(lake.report().to_html()):,} bytes of HTML"
        else:
            result = lake.status()[0].summary()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - started
    return {"files": files, "verb": verb, "MB": round(peak), "s": round(seconds, 1), "is": result}


def measure(files: int) -> Iterator[dict[str, Any]]:
    """Yield the measurement of each verb, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        os.environ.update(environment)
        config = make_lake(Path(folder))
        for verb in VERBS:
            if verb == "plan":  # its simulated states are others
                for path in Path(folder, "cache").rglob("*.sqlite"):
                    path.unlink()
            command = [sys.executable, "-m", "tools.lake_memory", str(files), verb, str(config)]
            yield json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main(arguments: list[str]) -> None:
    if arguments[1:2] and arguments[1] in VERBS:
        print(json.dumps(run_verb(Path(arguments[2]), arguments[1], int(arguments[0]))))
        return
    print(f"{'files':>9}  {'verb':12}  {'peak':>6}  {'time':>8}  result")
    for files in map(int, arguments or ["1000", "100000"]):
        for row in measure(files):
            count, verb, peak, seconds, result = row.values()
            print(f"{count:9,}  {verb:12}  {peak:3} MB  {seconds:6.1f} s  {result}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

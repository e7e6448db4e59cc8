"""Settings for the whole suite: repeatable examples, no timed verdicts, no keys shown; speed."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

pytest.register_assert_rewrite("tests.support")  # so that its failures show their values, too

from tests.support.java.fixtures import java  # noqa: E402 (imports what is rewritten)
from tests.support.java.jvm import SHORT_LIVED  # noqa: E402 (as above)
from tests.support.kms.server_fixtures import (  # noqa: E402 (as above)
    bao,
    bao_running,
    bare_environment,
    moto,
    moto_running,
    waits,
)  # fmt: skip
from tests.support.randomness import SEED, examples  # noqa: E402 (as above)
from tests.support.secret_watch import leftovers, pytest_configure  # noqa: E402 (as above)
from tests.support.spark.class_archive import use_archive  # noqa: E402 (as above)
from tests.support.valid_json import valid_json  # noqa: E402 (as above)

__all__ = [  # fixtures, one of each for a process, and what a session begins and ends with
    "bao", "bao_running", "bare_environment", "java", "leftovers", "moto", "moto_running",
    "pytest_configure", "valid_json", "waits",
]  # fmt: skip

# Temporary folders are in memory where there is room: on a disk, a commit waits for many fsyncs.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# What modcrypt remembers of the user's seals and declarations is none of the suite's business.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="modcrypt-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Files of keys that tests write are private, as the command line requires it.
os.umask(0o077)

# Tests of services that are down shall not wait for them as long as users do.
os.environ.setdefault("MODCRYPT_KMS_PATIENCE", "1")

# A shell that starts the suite in the background lets it ignore SIGINT, and the programs that tests
# interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Forks close all descriptors, also that of the pipe for signals that PyArrow opens to read CSV; it
# ends a process that forks without it.
pa.enable_signal_handlers(False)

# Fixtures that start a Spark; `make test-slow` runs the tests that use one.
SPARKS = {"spark", "cluster", "connect", "hive", "standalone"}

# Speed depends on the machine, so no health check and no deadline may judge it.
settings.register_profile(
    "modcrypt",
    derandomize=SEED is None,
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("modcrypt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that finds tests which depend on others that run before them."""
    parser.addoption("--shuffle", metavar="SEED", help="shuffle modules, and the tests in each")


@pytest.hookimpl(optionalhook=True)  # `make mutants` runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Start three processes for two cores: many tests wait for a JVM or server."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark tests of Hypothesis, and those of a shared Spark as slow; sort tests that are left."""
    for item in items:
        if isinstance(item, pytest.Function) and _is_hypothesis_test(item.obj):
            item.add_marker("seeded")
        if SPARKS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    yield  # other hooks drop the tests that are not selected
    _sort_by_jvm(items)
    if seed := config.getoption("shuffle", None):
        _shuffle(items, random.Random(seed))


def _sort_by_jvm(items: list[pytest.Item]) -> None:
    """Sort tests by the JVM that they wait for, so that one process starts it.

    A process begins with an equal slice of the list, which begins with the tests of one JVM, and
    others take tests from its end.
    """
    groups: dict[str, list[pytest.Item]] = {"shared": [], "own": [], "java": [], "": []}
    for item in items:
        groups[_name_jvm(item)].append(item)
    others = iter(groups.pop(""))
    size = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items.clear()
    for group in groups.values():
        items += [*group, *itertools.islice(others, max(size - len(group), 0))]
    items += others


def _shuffle(items: list[pytest.Item], dice: random.Random) -> None:
    """Keep the tests of a module together, as fixtures may be set up once for them."""
    modules = {item.path: dice.random() for item in items}
    items.sort(key=lambda item: (modules[item.path], dice.random()))


def _name_jvm(item: pytest.Item) -> str:
    """Return which JVM a test waits for: the `shared` Spark, its `own`, `java`, or none."""
    fixtures = getattr(item, "fixturenames", ())
    if item.nodeid.startswith("tests/spark/"):
        return "shared" if "spark" in fixtures else "own"
    return "java" if {"java", "iceberg", "metastore", "server"}.intersection(fixtures) else ""


def _is_hypothesis_test(test: object) -> bool:
    return is_hypothesis_test(vars(test).get("each_case", (test,))[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among the tests while they are collected: almost all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:  # also in the process that only starts others, and if a test module fails
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt the tests themselves from garbage collections: many tests ask for one."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Have all garbage collected again: some libraries say so when something of theirs is left."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Exempt what earlier modules left alive from the collections that tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def real_costs() -> Iterator[list[int]]:
    """Encrypt under passphrases at the least cost that is accepted; yield the real ones.

    `kms/keyring` checks these. Programs that a test runs have them, a third of a second each time.
    """
    least = {"keyring.keyring.SCRYPT_N": 2**14, "recipients.private_key_file.SCRYPT_COST": 2**14,
             "keyring.passphrase_encryption.SCRYPT_R": 1}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        real = [resolve_name(f"modcrypt.kms.{name}") for name in least]
        for name, cost in least.items():
            patch.setattr(f"modcrypt.kms.{name}", cost)
        yield real


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests from the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def small_sparks() -> Iterator[None]:
    """Have whatever starts Spark start a small one, unless it says otherwise."""
    java = " ".join([*SHORT_LIVED, *use_archive()])
    settings = {
        "executor.extraJavaOptions": java,
        "sql.shuffle.partitions": "2",
        "ui.enabled": "false",
    }
    options = " ".join(f'"-Dspark.{name}={value}"' for name, value in settings.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", f"{java} {options}")
        patch.setenv("SPARK_LAUNCHER_OPTS", java)  # the JVM that puts the command together
        yield

"""A start imports what it uses: the time until a first result is mostly that of imports."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.cli.app import program
from modcrypt.cli.program import ALONE
from modcrypt.io.private_files import replace_private
from modcrypt.jobs.engine import Job
from modcrypt.jobs.failures import Failure
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.parquet.writers.quirk import Quirk
from modcrypt.settings.setting import Setting
from modcrypt.settings.table import KeyReferences, PolicySettings, TablePolicySettings
from tests.support.cases import each_case, one_in

KEY = bytes(range(16))
SLOW = ("numpy", "pyarrow", "pyarrow.compute", "pyarrow.dataset", "pandas", "polars", "thriftpy2",
        "tomllib", "urllib.request", "cryptography", "click", "modcrypt.parquet.crypto",
        "modcrypt.kms", "modcrypt.settings", "modcrypt.iceberg", "modcrypt.lake",
        "modcrypt.spark")  # fmt: skip
"""Modules that take long, or bring others that do; importing PyArrow alone imports NumPy."""

NAMES = "modcrypt.read_table, modcrypt.write_table, modcrypt.encrypt_parquet, modcrypt.ParquetFile"
ARROW = {"numpy", "pyarrow", "cryptography", "modcrypt.parquet.crypto"}
PROGRAM = {"click", "modcrypt.settings"}
WORK = PROGRAM | {"cryptography", "modcrypt.parquet.crypto"}
KEYS = {"modcrypt.kms", "modcrypt.lake", "tomllib"}  # as a declaration may name the keys
PLUGINS = {"modcrypt.iceberg", "modcrypt.lake", "modcrypt.spark"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an encrypted file, which has its key and a plaintext file beside it."""
    path = tmp_path_factory.mktemp("starts") / "file.parquet"
    table = pa.table({"id": [1, 2], "name": ["a", "b"]})
    mc.write_table(table, path, KEY)
    pq.write_table(table, f"{path}.plain")
    replace_private(path.with_name("f.key"), KEY)
    return path


@each_case(
    ("script", "needed"),
    [
        ("import modcrypt", set()),
        (f"import modcrypt; {NAMES}", ARROW),
        ("import modcrypt; modcrypt.read_table({path!r}, {key!r})", ARROW),
        ("import modcrypt; next(modcrypt.iter_batches({path!r}, {key!r}))", ARROW),
        (
            "import io, modcrypt; modcrypt.decrypt_parquet({path!r}, io.BytesIO(), {key!r})",
            {"cryptography", "modcrypt.parquet.crypto"},
        ),
    ],
)
def test_the_library_imports_what_it_uses(script: str, needed: set[str], file: Path) -> None:
    assert list_imports(script.format(path=str(file), key=KEY)) == needed


def test_reading_and_writing_make_few_classes_that_take_long(file: Path) -> None:
    """Making a dataclass takes 0.7 ms, which results and properties are worth."""
    script = (
        f"import modcrypt; {NAMES}; modcrypt.read_table({str(file)!r}, {KEY!r})\n"
        "import json, sys, inspect, dataclasses\n"
        "loaded = [m for name, m in sys.modules.items() if name.startswith('modcrypt')]\n"
        "classes = {c for m in loaded for c in vars(m).values() if inspect.isclass(c)}\n"
        "slow = sorted(c.__name__ for c in classes if dataclasses.is_dataclass(c))\n"
        "unused = {'random', 'secrets', 'modcrypt.parquet.format.findings'}\n"
        "print(json.dumps([slow, sorted(unused & sys.modules.keys())]))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    properties = ["FileDecryptionProperties", "FileEncryptionProperties"]
    assert json.loads(done.stdout) == [[*properties, "Footer", "Place"], []]


def test_settings_and_verbs_make_no_functions() -> None:
    """Making those of a dataclass takes 1 to 3 ms; policies and others have their own."""
    for kind in (PolicySettings, KeyReferences, TablePolicySettings):
        assert not {"__init__", "__eq__", "__repr__"} & vars(kind).keys()
    assert not any(map(is_dataclass, (Setting, Verb, Job, Failure, Quirk)))


@each_case(
    ("words", "needed"),
    [
        ("--version", set()),
        ("", set()),
        ("--help", set()),
        ("--help-all", PROGRAM | PLUGINS),
        ("encrypt --help", PROGRAM),
        ("encrypt --typo", PROGRAM | PLUGINS),  # perhaps it is an option of another command
        ("--json inspect {path}", PROGRAM | PLUGINS | {"cryptography", "modcrypt.parquet.crypto"}),
        # Those without a key look for a declaration of the file.
        ("inspect {path}", WORK | {"modcrypt.lake"}),
        ("inspect --key file:{key} {path}", WORK | KEYS),
        ("decrypt --key file:{key} {path} {path}.out", WORK | KEYS),
        ("encrypt --key file:{key} {path}.plain {path}.new", WORK | KEYS),
        ("schema --key file:{key} {path}", WORK | ARROW | KEYS),
        ("head --key file:{key} {path}", WORK | ARROW | KEYS | {"pyarrow.compute"}),
        ("leaks {path}", WORK | ARROW | {"modcrypt.kms", "tomllib"}),
        ("doctor", WORK | KEYS),
        ("verify --key file:{key} {path}", WORK | ARROW | KEYS | PLUGINS),
    ],
    quick=one_in(2),
)
def test_the_program_imports_what_it_uses(words: str, needed: set[str], file: Path) -> None:
    arguments = words.format(path=file, key=file.with_name("f.key")).split()
    script = f"sys.argv[1:] = {arguments!r}; import modcrypt.cli; modcrypt.cli.run()"
    assert list_imports(script) == needed, words


@each_case(
    ("words", "shown", "needed"),
    [
        ("modcrypt encrypt --footer", "plain,--footer-key", PROGRAM),
        ("modcrypt ve", "plain,verify", {"click"}),
    ],
)
def test_shells_complete_a_command_without_the_others(
    words: str, shown: str, needed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MODCRYPT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    script = "sys.argv[1:] = []; import modcrypt.cli; modcrypt.cli.run()"
    assert list_imports(script, shown=shown) == needed


def test_the_end_of_the_program_collects_no_modules() -> None:
    script = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000))"
    run = f"{script}; from modcrypt.cli import run; run()"
    command = [sys.executable, "-c", run, "inspect", "--typo"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


@each_case("name", sorted(ALONE))
def test_a_command_alone_is_that_of_the_whole_program(name: str) -> None:
    """No plug-in replaces it."""
    assert program.commands[name] is getattr(import_module(module_of(name)), name)
    assert not isinstance(program.commands[name], click.Group)


def module_of(name: str) -> str:
    return next(names[name] for names in program.sections.values() if name in names)


def list_imports(script: str, shown: str = "") -> set[str]:
    """Return which of the slow modules a process has imported when a script has ended."""
    code = (
        "import atexit, json, sys\n"
        f"note = lambda: print(json.dumps(sorted({{*{SLOW!r}}} & sys.modules.keys())))\n"
        f"atexit.register(note)\n{script}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown in done.stdout, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))

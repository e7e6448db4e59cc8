"""A vault in a real PostgreSQL server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from modcrypt.errors import FormatError, KeyMaterialError, KeyNotFoundError
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectErasedError, SubjectVault, create_vault, open_vault
from tests.support.cli.program import run
from tests.support.postgresql import run_server
from tests.support.sample_vault import fingerprints
from tests.support.subject_writers import run_writers

pytest.importorskip("psycopg")

pytestmark = pytest.mark.slow  # starts a server

SUBJECTS = [b"%d" % number for number in range(25_000)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the database of a server."""
    with run_server() as uri:
        yield uri


@pytest.fixture
def address(server: str, tools: KeyTools) -> Iterator[str]:
    """The address of a vault with a database of its own, in the working directory's folder."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE lake")
        yield f"{server.removesuffix('postgres')}lake?keys={Path('subjects.keks').resolve()}"
        connection.execute("DROP DATABASE lake WITH (FORCE)")


@pytest.fixture
def vault(address: str, tools: KeyTools) -> Iterator[SubjectVault]:
    """A vault in the server, which knows subjects."""
    vault = create_vault(address, tools, "people")
    fingerprints(vault, vault.references(SUBJECTS), create=True)
    yield vault
    vault.close()


def test_a_vault_in_a_server(vault: SubjectVault, address: str, tools: KeyTools) -> None:
    references = vault.references(SUBJECTS)
    keys = fingerprints(vault, references)
    assert len({*keys}) == len(SUBJECTS)
    with pytest.raises(FileExistsError):
        create_vault(f"{address}.other", tools, "people")
    assert vault.erase(references[:1000], "GDPR-17") == {"erased": 1000, "before": 0, "unknown": 0}
    expected = [None] * 1000 + keys[1000:]
    assert fingerprints(vault, references) == expected
    shutil.copy("subjects.keks", "old.keks")
    status = vault.rotate()
    assert (status["generation"], status["subjects"], status["erased"]) == (2, 24_000, 1000)
    again = open_vault(address, tools)
    assert fingerprints(again, references) == expected
    with pytest.raises(SubjectErasedError):
        fingerprints(again, references, create=True)
    shutil.copy("old.keks", "subjects.keks")
    old = open_vault(address, tools)
    with pytest.raises(KeyMaterialError, match="from before a rotation"):
        fingerprints(old, references)
    old.close()
    again.close()


def test_altered_rows(vault: SubjectVault) -> None:
    vault._database.query("UPDATE subject_key SET generation = 7")
    with pytest.raises(KeyMaterialError, match="no key for generation 7"):
        fingerprints(vault, vault.references(SUBJECTS[:1]))
    vault._database.query("UPDATE subject_key SET generation = 1, stream = substr(stream, 2)")
    with pytest.raises(KeyMaterialError, match="does not unwrap"):
        fingerprints(vault, vault.references(SUBJECTS[:1]))


def test_processes_create_keys_at_once(address: str, tools: KeyTools) -> None:
    create_vault(address, tools, "people").close()
    found = run_writers(5_000, (1_000, 777, 3_000), address)
    assert found[0] == found[1] == found[2]
    assert len({*found[0]}) == 5_000


def test_a_stricter_default_isolation(
    server: str, address: str, vault: SubjectVault, tools: KeyTools
) -> None:
    """A snapshot from before the lock would miss subjects that others create meanwhile."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "ALTER DATABASE lake SET default_transaction_isolation = 'repeatable read'"
        )
    found = run_writers(2_000, (500, 333), address)
    assert found[0] == found[1]
    with closing(open_vault(address, tools)) as other, ThreadPoolExecutor(1) as pool:
        (late,) = vault.references([b"late"])
        with vault._changing() as keys:
            erasing = pool.submit(other.erase, [late], "GDPR-17")
            time.sleep(0.5)  # it waits for the lock
            row = keys.wrap({late: bytes(32)})
            vault._database.query_each("INSERT INTO subject_key VALUES (?, ?, ?)", row)
        assert erasing.result()["erased"] == 1


def test_vaults_that_are_created_at_once(address: str, tools: KeyTools) -> None:
    def create(name: str) -> str:
        try:
            create_vault(address.replace("subjects.keks", name), tools, "people").close()
        except FileExistsError:
            return "exists"
        return "created"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, "abcd")) == ["created", *["exists"] * 3]


def test_a_failed_transaction_changes_nothing(vault: SubjectVault) -> None:
    (new,) = vault.references([b"new"])
    insert = "INSERT INTO subject_key VALUES (?, 1, ?)"
    with pytest.raises(FormatError), vault._database.transaction():
        vault._database.query_each(insert, [(new, b"x"), (new, b"x")])
    with pytest.raises(KeyNotFoundError):
        fingerprints(vault, [new])


def test_a_lost_connection_is_made_again(vault: SubjectVault) -> None:
    (reference,) = vault.references(SUBJECTS[:1])
    before = fingerprints(vault, [reference])
    with pytest.raises(OSError, match="check that it runs"):
        vault._database.query("SELECT pg_terminate_backend(pg_backend_pid())")
    assert fingerprints(vault, [reference]) == before


def test_the_command_line(vault: SubjectVault, address: str) -> None:
    options = ("--vault", address, "--kms", "file:lake.keyring")
    erased = run(Path(), "subjects", "erase", "7", "--request", "GDPR-17", "--yes", *options)
    assert erased.stdout == "1 erased, 0 erased before, 0 not in the vault\n", erased.stderr
    assert Path("subjects.evidence.jsonl").exists()
    assert run(Path(), "subjects", "prove", "7", *options).returncode == 0


def test_a_server_that_does_not_answer(tools: KeyTools) -> None:
    with pytest.raises(OSError, match="check that it runs"):
        open_vault("postgresql://127.0.0.1:1/lake?keys=k", tools)
    with pytest.raises(ValueError, match="needs a key file"):
        open_vault("postgresql://127.0.0.1:1/lake", tools)

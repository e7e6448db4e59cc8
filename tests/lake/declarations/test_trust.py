"""A declaration that is found commands nothing until the user has given a word of trust."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake.declarations.declaration_file import open_declaration, read_content
from modcrypt.lake.declarations.member_table import DATASET_MEMBERS, TABLE_MEMBERS
from modcrypt.lake.declarations.trust import find_record, trust_folder
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.lake_folder import trust_lake
from tests.support.signing import writer_key

DATASET = '[dataset.d]\nlocation = "data"\nfooter_key = "k"\n'
TABLE = '[dataset.t]\nkind = "iceberg"\nmaster_key = "k"\n'
IN_FOLDER = f'{TABLE}location = "table"\n'

COMMANDS = {
    "module": ('kms = "pkcs11:token=t?module-path={folder}/evil.so"', "", "kms"),
    "server": ('kms = "hcvault://127.0.0.1:9/transit?tls=off"', "", "kms"),
    "token": ('kms = "hcvault://127.0.0.1:9/transit?tls=off&token=file:{outside}/t"', "", "kms"),
    "other mount": ('kms = "hcvault://vault.example/other"', "", "kms"),
    "cloud": ('kms = "aws-kms://?region=eu-central-1"', "", "kms"),
    "keyring": ('kms = "file:lake.keyring"', "", "kms"),
    "passphrase": ('kms = "file:/k?passphrase=file:{outside}/p"', "", "kms"),
    "variable": ('kms = "env:SECRET"', "", "kms"),
    "identity": ('kms = "recipients:pubs?identity={outside}/i"', "", "kms"),
    "location above": ("", DATASET.replace('"data"', '"../outside"'), "dataset.d.location"),
    "location beside": ("", DATASET.replace('"data"', '"data/../../outside"'), "location"),
    "location absolute": ("", DATASET.replace('"data"', '"{outside}"'), "dataset.d.location"),
    "location at home": ("", DATASET.replace('"data"', '"~/data"'), "dataset.d.location"),
    "location in a store": ("", DATASET.replace('"data"', '"s3://b/d"'), "dataset.d.location"),
    "location by a link": ("", DATASET.replace('"data"', '"link"'), "dataset.d.location"),
    "location below a link": ("", DATASET.replace('"data"', '"link/x"'), "dataset.d.location"),
    "location with a pattern": ("", DATASET.replace('"data"', '"../*.parquet"'), "location"),
    "source": ("", DATASET + 'source = "../outside"\n', "dataset.d.source"),
    "policy": ("", DATASET + 'policy = "{outside}/policy.toml"\n', "dataset.d.policy"),
    "policy by a link": ("", DATASET + 'policy = "link/policy.toml"\n', "dataset.d.policy"),
    "recipient": ("", DATASET + 'recipients = ["{recipient}"]\n', "dataset.d.recipients"),
    "recipients": ("", DATASET + 'recipients = ["partner.pub"]\n', "dataset.d.recipients"),
    "writer": ("", DATASET + 'signed_by = ["{writer}"]\n', "dataset.d.signed_by"),
    "writer of a policy": ("", DATASET + 'policy = "signed.toml"\n', "dataset.d.signed_by"),
    "rotation": ("", DATASET + 'rotation = {{ max_version_age = "1m" }}\n', "max_version_age"),
    "catalog": ("", TABLE + 'catalog = "https://127.0.0.1:9/"\ntable = "a.b"\n', "catalog"),
    "named catalog": ("", TABLE + 'catalog = "prod"\nnamespace = "*"\n', "dataset.t.catalog"),
    "SQL catalog": ("", TABLE + 'catalog = "sqlite:///c.db"\nnamespace = "*"\n', "catalog"),
    "table": ("", TABLE + 'location = "{outside}"\n', "dataset.t.location"),
    "map": ("", IN_FOLDER + 'location_map = {{ "s3://a" = "{outside}" }}\n', "location_map.s3://a"),
    "key store": ("", IN_FOLDER + 'key_store = "keys.db"\n', "dataset.t.key_store"),
    "writer of a table": ("", IN_FOLDER + 'signed_by = ["{writer}"]\n', "dataset.t.signed_by"),
    "restrictions": ("", IN_FOLDER + 'read_restrictions = "{outside}/r"\n', "read_restrictions"),
}  # fmt: skip
"""Line about the key service, data sets, and the member that is a command."""

VERBS = (
    ("status",), ("status", "d", "--files"), ("apply",), ("apply", "--dry-run"), ("verify",),
    ("verify", "--resume"), ("report", "--json"), ("why", "data/x.parquet"),
    ("keys", "impact", "k"),
)  # fmt: skip


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was used of what a declaration commands: key services, catalogs and sockets."""
    found: list[Any] = []

    def note(*arguments: Any, **options: Any) -> None:
        found.append(arguments)
        raise PermissionError("not in this test")

    monkeypatch.setattr("modcrypt.kms.references._find_opener", note)
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", note)
    monkeypatch.setattr("socket.socket.connect", note)
    monkeypatch.setattr("modcrypt.lake.lake.DatasetPolicies", note)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cloned folder beside one of the user, who has a Vault of his own."""
    outside, cloned = tmp_path / "outside", tmp_path / "cloned"
    for path in (outside, cloned / "data"):
        path.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), path / "x.parquet")
    (outside / "policy.toml").write_text('footer_key = "k"\n')
    (cloned / "signed.toml").write_text(
        f'footer_key = "k"\nsigned_by = ["{writer_key().verifier}"]'
    )
    (cloned / "partner.pub").write_text(f"{partner()}\n")
    (cloned / "link").symlink_to(outside)
    monkeypatch.setenv("MODCRYPT_KMS", "hcvault://vault.example/transit")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(cloned)
    return cloned


def partner() -> mc.Recipient:
    return mc.Identity.generate("x25519").recipient


def declare(folder: Path, service: str, datasets: str) -> Path:
    names = {
        "folder": folder, "outside": folder.parent / "outside", "recipient": partner(),
        "writer": writer_key().verifier,
    }  # fmt: skip
    path = folder / "modcrypt.toml"
    path.write_text(f"{service}\n{datasets or DATASET}".format(**names))
    return path


@each_case("kind", COMMANDS)
def test_no_verb_obeys_a_command_without_trust(kind: str, folder: Path, used: list[Any]) -> None:
    service, datasets, member = COMMANDS[kind]
    path = declare(folder, service, datasets)
    for verb in VERBS:
        answer = run(folder, *verb)
        assert answer.returncode == 2, (verb, answer.stdout, answer.stderr)
        reported = answer.stderr + answer.stdout
        assert "was not named, only found" in " ".join(reported.split()), verb
        assert f"{member} = " in reported, verb
    with pytest.raises(ValueError, match="was not named, only found"):
        Lake.open()
    with pytest.raises(ValueError, match="was not named, only found"):
        Lake.open(path, is_found=True)
    assert used == []
    assert pq.read_table(folder.parent / "outside/x.parquet").num_rows == 1


@each_case("kind", [kind for kind in COMMANDS if kind not in ("policy by a link", "restrictions")])
def test_each_word_of_trust_suffices(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, datasets, _ = COMMANDS[kind]
    path = declare(folder, service, datasets)
    digest = read_content(path).digest
    assert Lake.open(path)
    with monkeypatch.context() as patch:
        patch.setenv("MODCRYPT_CONFIG", "modcrypt.toml")
        assert Lake.open()
    with monkeypatch.context() as patch:
        patch.setenv("MODCRYPT_TRUST", digest.upper())
        assert Lake.open()
        patch.setenv("MODCRYPT_TRUST", "0" * 64)
        with pytest.raises(ValueError, match=f"MODCRYPT_TRUST={digest}"):
            Lake.open()
    assert run(folder, "trust").returncode == 0
    assert Lake.open()


@each_case(
    ("service", "datasets"),
    [
        ("", DATASET),
        ('kms = "hcvault://vault.example/transit"', DATASET),
        ("", DATASET.replace("footer_key", 'policy = "own.toml"\nfooter_key')),
        ("", DATASET.replace('"data"', '"./data/*.parquet"') + 'source = "landing"\n'),
        ("", DATASET.replace('"data"', '"."')),
        ("", DATASET.replace('"data"', '"file:/etc"')),  # a path in the folder, no URL
        ("", IN_FOLDER + 'read_restrictions = "r.json"\nkek_per = "day"\n'),
        ("", DATASET + 'previous = {{ master_keys = {{ old = "k" }} }}\n'),
    ],
)
def test_what_stays_in_the_folder_needs_no_trust(service: str, datasets: str, folder: Path) -> None:
    (folder / "own.toml").write_text('kms = "file:/ignored"\naad_prefix = "p"\n')
    (folder / "r.json").write_text("{}")
    path = declare(folder, service, datasets)
    content = open_declaration()
    assert content is not None
    assert (content.path, content.commands, content.faults) == (path, [], [])


def test_other_members_are_commands() -> None:
    """So a new one needs trust, unless somebody decides otherwise."""
    assert {name for name, each in DATASET_MEMBERS.items() if not each.free} == {
        "recipients",
        "signed_by",
        "subjects",
    }
    assert {name for name, each in TABLE_MEMBERS.items() if not each.free} == {
        "catalog", "catalog_name", "key_store", "signed_by",
    }  # fmt: skip


def test_a_vault_of_the_environment_is_no_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODCRYPT_KMS")
    monkeypatch.setenv("VAULT_ADDR", "https://vault.example:8200")
    declare(folder, 'kms = "hcvault://vault.example:8200/transit"', DATASET)
    assert Lake.open().declaration.kms == "hcvault://vault.example:8200/transit"
    declare(folder, 'kms = "hcvault://vault.example:8200/transit?token=env:OTHER"', DATASET)
    with pytest.raises(ValueError, match="may not command: kms"):
        Lake.open()


def test_a_keyring_that_the_folder_decides_about_is_a_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names a path that means another file in each folder."""
    monkeypatch.setenv("MODCRYPT_KMS", "file:lake.keyring")
    declare(folder, "", DATASET)
    with pytest.raises(ValueError, match="may not command: kms"):
        Lake.open()
    monkeypatch.setenv("MODCRYPT_KMS", f"file:{folder}/lake.keyring")
    assert Lake.open()
    declare(folder, 'kms = "file:lake.keyring"', DATASET)
    assert Lake.open()


# --- files that are included ---------------------------------------------------------------------


@pytest.fixture
def included(folder: Path) -> Path:
    """Return a declaration that includes a file of each kind, and is trusted."""
    (folder / "own.toml").write_text(f'footer_key = "k"\nsigned_by = ["{folder}/writer.pub"]\n')
    (folder / "writer.pub").write_text(f"{writer_key().verifier}\n")
    (folder / "r.json").write_text("{}")
    more = 'policy = "own.toml"\nrecipients = ["partner.pub"]\n'
    declare(folder, "", DATASET + more + IN_FOLDER + 'read_restrictions = "r.json"\n')
    assert Lake.open(trust_lake(folder), is_found=True)
    return folder / "modcrypt.toml"


FILES = ("modcrypt.toml", "own.toml", "partner.pub", "writer.pub", "r.json")


@each_case("name", FILES)
def test_a_change_of_any_included_file_asks_again(name: str, included: Path) -> None:
    path = included.parent / name
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ValueError, match="has changed since it was trusted"):
        Lake.open()
    assert run(included.parent, "trust").returncode == 0
    assert Lake.open()


@each_case("name", FILES)
@each_case("mode", [0o664, 0o666, 0o646])
def test_a_file_that_others_can_write_is_refused(mode: int, name: str, included: Path) -> None:
    (included.parent / name).chmod(mode)
    with pytest.raises(ValueError, match=f"{name} is writable by others"):
        Lake.open()
    if name != "modcrypt.toml":  # a word about one file says nothing about others
        with pytest.raises(ValueError, match=f"{name} is writable by others"):
            Lake.open(included)
    assert run(included.parent, "trust").returncode == 2


def test_a_file_in_a_folder_of_others_is_refused(included: Path) -> None:
    folder = included.parent
    (folder / "shared").mkdir()
    (folder / "partner.pub").rename(folder / "shared/partner.pub")
    included.write_text(included.read_text().replace("partner.pub", "shared/partner.pub"))
    assert Lake.open(included)
    (folder / "shared").chmod(0o777)
    with pytest.raises(ValueError, match=r"the folder of .*partner.pub is writable by others"):
        Lake.open(included)


def test_a_pipe_is_not_waited_for(included: Path) -> None:
    (included.parent / "own.toml").unlink()
    os.mkfifo(included.parent / "own.toml")
    with pytest.raises(ValueError, match=r"own\.toml is not a regular file"):
        Lake.open(included)


def test_nothing_outside_is_looked_at_before_trust(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a look can reach the server of a network share."""
    looked: list[str] = []

    def watch(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def note(path: Any, *more: Any, **options: Any) -> Any:
            looked.append(str(path))
            return original(path, *more, **options)

        return note

    where = str(folder.parent / "outside")
    names = ("policy.toml", "link/policy.toml")
    declare(folder, "", "".join(
        DATASET.replace("dataset.d", f"dataset.d{n}") + f'policy = "{where if n else ""}/{name}"\n'
        for n, name in enumerate(names)
    ).replace('"/policy', '"link/policy'))  # fmt: skip
    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, watch(name))
    with pytest.raises(ValueError, match="only found"):
        open_declaration()
    assert looked
    assert not [path for path in looked if path.startswith(where)]


# --- records -------------------------------------------------------------------------------------


def test_the_command_shows_records_lists_and_removes(folder: Path) -> None:
    path = declare(folder, 'kms = "file:/keys/lake.keyring"', DATASET)
    digest = run(folder, "trust", "--print").stdout.strip()
    assert digest == read_content(path).digest
    assert find_record(path) is None
    answer = run(folder / "data", "trust")
    assert answer.stdout.splitlines() == [
        "  kms = file:/keys/lake.keyring",
        f"{path} is trusted, as shown, until it changes",
    ]
    (record,) = trust_folder().iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    assert trust_folder().stat().st_mode & 0o777 == 0o700
    assert run(folder, "trust", "--list").stdout == f"{digest}  {path}\n"
    assert "only found" not in run(folder, "status").stderr
    fields = json.loads(run(folder, "trust", "--json", "modcrypt.toml").stdout)
    assert fields == {
        "schema": "modcrypt.trust/1", "file": str(path), "sha256": digest,
        "commands": ["kms = file:/keys/lake.keyring"],
    }  # fmt: skip
    (listed,) = map(json.loads, run(folder, "trust", "--list", "--json").stdout.splitlines())
    assert (listed["file"], listed["sha256"]) == (str(path), digest)
    assert run(folder, "trust", "--remove").stdout == f"{path} is no longer trusted\n"
    assert run(folder, "trust", "--remove").stdout == f"{path} was not trusted\n"
    assert run(folder, "status").returncode == 2
    declare(folder, "", DATASET)
    assert "although nothing in it needs trust" in run(folder, "trust").stdout


def test_mistakes_and_missing_files_are_reported(folder: Path) -> None:
    declare(folder, 'kms = "file:/k"', DATASET.replace("footer_key", "footer"))
    answer = run(folder, "trust")
    assert (answer.returncode, "footer_key is missing" in answer.stderr) == (2, True)
    assert not trust_folder().exists()
    assert run(folder, "trust", "nowhere.toml").returncode == 2
    assert run(folder, "trust", "--list", "--remove").returncode == 2
    (folder / "modcrypt.toml").unlink()
    assert "there is no modcrypt.toml here" in run(folder, "trust").stderr


def test_a_record_of_another_user_does_not_count(folder: Path) -> None:
    declare(folder, 'kms = "file:/k"', DATASET)
    trust_lake(folder)
    (record,) = trust_folder().iterdir()
    for path, safe, mode in ((record, 0o600, 0o666), (trust_folder(), 0o700, 0o777)):
        path.chmod(mode)
        with pytest.raises(mc.errors.KeyRetrievalError, match="writable by others"):
            Lake.open()
        path.chmod(safe)
    trust_folder().chmod(0o777)
    with pytest.raises(mc.errors.KeyRetrievalError, match="writable by others"):
        trust_lake(folder)
    assert list(trust_folder().iterdir()) == [record]


def test_a_record_is_about_one_path(folder: Path, tmp_path: Path) -> None:
    """A copy of a trusted declaration, or a link to it, means other files."""
    path = declare(folder, 'kms = "file:lake.keyring"', DATASET)
    trust_lake(folder)
    other = tmp_path / "other"
    other.mkdir()
    for make in (lambda: (other / "modcrypt.toml").write_bytes(path.read_bytes()),
                 lambda: (other / "modcrypt.toml").symlink_to(path)):  # fmt: skip
        make()
        with pytest.raises(ValueError, match="was not named, only found"):
            Lake.open(other / "modcrypt.toml", is_found=True)
        (other / "modcrypt.toml").unlink()
    (tmp_path / "by-link").symlink_to(folder)
    assert Lake.open(tmp_path / "by-link/modcrypt.toml", is_found=True)


@each_case("content", [b"", b"x", b"0" * 64 + b" /other/modcrypt.toml\n", b"\xff" * 100_000])
def test_a_record_with_other_content_is_none(content: bytes, folder: Path) -> None:
    path = declare(folder, 'kms = "file:/k"', DATASET)
    trust_lake(folder)
    (record,) = trust_folder().iterdir()
    record.write_bytes(content)
    assert find_record(path) is None
    with pytest.raises(ValueError, match="only found"):
        Lake.open()


def test_a_hash_that_is_none_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(folder, 'kms = "file:/k"', DATASET)
    monkeypatch.setenv("MODCRYPT_TRUST", "yes")
    with pytest.raises(ValueError, match="must be a SHA-256"):
        Lake.open()


def test_a_state_folder_that_is_relative_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert trust_folder() == folder.parent / "home/.local/state/modcrypt/trust"


def test_a_secret_in_a_uri_is_not_shown(folder: Path) -> None:
    for uri in (
        "hcvault://me:Zq9@vault.other/transit", "pkcs11:token=t?pin-value=Zq9",
        "file:/k?passphrase=Zq9", "hcvault://vault.other/transit?token=Zq9&tls=off",
    ):  # fmt: skip
        declare(folder, f'kms = "{uri}"', DATASET)
        answer = run(folder, "status")
        assert answer.returncode == 2
        assert "(hidden)" in answer.stderr
        assert "Zq9" not in answer.stderr


def test_many_commands_are_not_all_listed(folder: Path) -> None:
    datasets = "".join(
        DATASET.replace("dataset.d", f"dataset.d{n}").replace('"data"', '"/x"') for n in range(50)
    )
    declare(folder, "", datasets)
    with pytest.raises(ValueError, match="; and 30 more") as caught:
        Lake.open()
    assert len(str(caught.value)) < 3000


def test_verbs_obey_no_untrusted_declaration(
    folder: Path, used: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODCRYPT_KMS")
    for kind in ("module", "server"):
        service, datasets, _ = COMMANDS[kind]
        declare(folder, service, datasets)
        for verb in (("doctor",), ("inspect", "data/x.parquet"), ("schema", "data/x.parquet")):
            assert "is ignored" in run(folder, *verb).stderr or verb == ("doctor",), verb
        copy = ("decrypt", "data/x.parquet", "copy.parquet")  # whose destination is in no dataset
        assert run(folder, *copy).stderr.count("is ignored") == 1
    assert used == []


def test_files_are_verified_although_a_declaration_is_not_trusted(folder: Path) -> None:
    declare(folder, 'kms = "file:/k"', DATASET)
    assert "only found" not in run(folder, "verify", "data/x.parquet").stderr
    assert "only found" not in run(folder, "verify", "./d").stderr
    assert "only found" in " ".join(run(folder, "verify", "d").stderr.split())

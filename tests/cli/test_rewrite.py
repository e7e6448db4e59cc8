"""`modcrypt rekey`, `mask` and `share` as users meet them; PyArrow reads what comes out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt
from tests.support.cases import each_case
from tests.support.cli.answers import LOST_KEYS, check_refusal, lines, run_ok
from tests.support.cli.program import KEY, NAME_KEY, examples_of, invoke, private, run
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.pyarrow_keyring import FACTORY, LOCAL
from tests.support.mask_hash import mask_hash
from tests.support.tables import read_with_pyarrow, small_table, write_plain
from tools.unknown_fields import marker, with_unknown_fields

NEW_KEY = ("--to", "new.toml")
SIGNED = ("--to", "signed.toml")  # with a plaintext footer
OLD = (*KEY, *NAME_KEY)
FILES = ("sealed.parquet", "out.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with keys, plain.parquet, and sealed.parquet with a key of its own for `name`."""
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode())
    private(tmp_path / "new.key", OTHER_KEY.hex().encode())
    policy = write_policy(tmp_path, "new.toml")
    (tmp_path / "signed.toml").write_text(f"plaintext_footer = true\n{policy}")
    write_plain(tmp_path / "plain.parquet")
    prefix = ("--aad-prefix", "old/prefix", "--footer-key-metadata", "old-footer")
    run_ok(tmp_path, "encrypt", *OLD, *prefix, "plain.parquet", "sealed.parquet")
    return tmp_path


@pytest.fixture
def ring(folder: Path) -> Path:
    """The same with lake.keyring, in the clear, of footer and pii."""
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer", value=FOOTER_KEY)
    ring.create_key("pii", value=COLUMN_KEY)
    return folder


def write_policy(folder: Path, name: str, more: str = "") -> str:
    """Write a policy with new.key for footers, and return it."""
    text = f'footer_key = "file:new.key"\n{more}'
    (folder / name).write_text(text)
    return text


def read_by_kms(path: Path) -> pa.Table:
    """Read a file with PyArrow's key tools."""
    properties = FACTORY.file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), path, LOCAL
    )
    with pq.ParquetFile(path, decryption_properties=properties) as file:
        return file.read()


# --- rekey ---------------------------------------------------------------------------------------


def test_pyarrow_reads_a_rekeyed_file_with_the_new_key_alone(folder: Path) -> None:
    assert run_ok(folder, "rekey", *OLD, *NEW_KEY, *FILES).startswith("rekeyed sealed.parquet to ")
    assert read_with_pyarrow(folder / "out.parquet", OTHER_KEY).equals(small_table())
    data = (folder / "out.parquet").read_bytes()
    assert b"old/prefix" not in data  # nothing of the old ones stays
    assert b"old-footer" not in data
    with pytest.raises(OSError, match="decrypt"):
        read_with_pyarrow(folder / "out.parquet", FOOTER_KEY)


def test_a_column_that_loses_its_own_key_is_reported(folder: Path) -> None:
    result = invoke(folder, "rekey", *OLD, *NEW_KEY, *FILES)
    assert result.stderr == f"{LOST_KEYS}name\n"
    (folder / "out.parquet").unlink()
    answer = invoke(folder, "rekey", *OLD, *NEW_KEY, "--json", *FILES)
    assert json.loads(answer.stdout)["under_footer_key"] == ["name"]


FORMER = (
    *("--new-key-file", "new.key", "--new-column-key=address=file:name.key"),
    *("--new-plaintext-footer", "--new-plaintext-column", "flag"),
    *("--new-algorithm", "AES_GCM_CTR_V1", "--new-aad-prefix", "new/prefix"),
    *("--new-footer-key-metadata", "n€w", "--new-column-key-metadata", "address=k=a"),
)


def test_every_former_new_option_reaches_the_file(folder: Path) -> None:
    result = invoke(folder, "rekey", *OLD, *FORMER, *FILES)
    assert result.exit_code == 0
    assert result.stderr.count("name a policy by --to instead") == 1
    data = (folder / "out.parquet").read_bytes()
    assert data[:4] == b"PAR1"
    for stored in (b"new/prefix", "n€w".encode(), b"k=a"):
        assert stored in data
    flags = pq.read_table(folder / "out.parquet", columns=["flag"])  # by legacy readers too
    assert flags.equals(small_table().select(["flag"]))
    back = ("--key", "file:new.key", "--column-key", "address=file:name.key")
    accept = ("--accept-algorithm", "AES_GCM_CTR_V1", "--aad-prefix", "new/prefix")
    run_ok(folder, "decrypt", *back, *accept, "out.parquet", "again.parquet")
    assert (folder / "again.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()


def test_every_member_of_a_policy_reaches_the_file(folder: Path) -> None:
    (folder / "keys").mkdir()
    for name in ("new.key", "name.key"):
        (folder / name).rename(folder / "keys" / name)
    write_policy(
        folder / "keys", "new.toml",
        'plaintext_footer = true\nplaintext_columns = ["flag"]\naad_prefix = "new/prefix"\n'
        'encryption_algorithm = "AES_GCM_CTR_V1"\n[column_keys]\n"file:name.key" = ["address"]\n',
    )  # fmt: skip
    old = (*KEY, "--column-key", "name=file:keys/name.key")
    run_ok(folder, "rekey", *old, "--to", "keys/new.toml", *FILES)
    data = (folder / "out.parquet").read_bytes()
    assert (data[:4], b"new/prefix" in data) == (b"PAR1", True)
    run_ok(folder, "decrypt", "--policy", "keys/new.toml", "out.parquet", "again.parquet")
    assert (folder / "again.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()


def test_a_new_prefix_that_is_not_stored_must_be_known(folder: Path) -> None:
    write_policy(folder, "new.toml", 'aad_prefix = "new/prefix"\nstore_aad_prefix = false\n')
    run_ok(folder, "rekey", *OLD, *NEW_KEY, *FILES)
    theirs = read_with_pyarrow(folder / "out.parquet", OTHER_KEY, b"new/prefix")
    assert theirs.equals(small_table())


@pytest.mark.parametrize("external", [False, True], ids=["internal", "external"])
def test_given_keys_give_way_to_those_of_a_keyring(ring: Path, external: bool) -> None:
    (ring / "ring.toml").write_text(
        f'kms = "file:lake.keyring"\nfooter_key = "footer"\ncolumn_keys.pii = ["name"]\n'
        f"double_wrapping = false\ninternal_key_material = {str(not external).lower()}\n"
    )
    said = json.loads(run_ok(ring, "rekey", *OLD, "--to", "ring.toml", *FILES, "--json"))
    assert read_by_kms(ring / "out.parquet").equals(small_table())
    assert said["destination"] == "out.parquet"
    assert "name" in said["resealed"]
    assert said["dropped"] == said["kept"] == []


def test_a_folder_goes_from_one_policy_to_another(ring: Path) -> None:
    old = 'kms = "file:lake.keyring"\nfooter_key = "footer"\naad_prefix = "old/{name}"\n'
    (ring / "old.toml").write_text(old + 'column_keys.pii = ["name"]\n')
    (ring / "new.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "pii"\n')
    (ring / "lake").mkdir()
    for number in range(3):
        files = ("plain.parquet", f"lake/{number}.parquet")
        run_ok(ring, "encrypt", "--policy", "old.toml", *files)
    both = ("--policy", "old.toml", "--to", "new.toml", "--audit", "audit.jsonl")
    plan = run_ok(ring, "rekey", *both, "lake", "next", "--dry-run")
    assert plan.splitlines()[0] == "would rekey lake/0.parquet to next/0.parquet"
    assert run_ok(ring, "rekey", *both, "lake", "next").startswith("3 files: 3 rekeyed; ")
    for number in range(3):
        assert read_by_kms(ring / "next" / f"{number}.parquet").equals(small_table())
    scanned = run_ok(ring, "keys", "scan", "next", "--json").splitlines()
    assert {json.loads(line)["master_key_id"] for line in scanned} == {"pii", None}
    events = [json.loads(line) for line in (ring / "audit.jsonl").read_text().splitlines()]
    reported = {(event["operation"], event["master_key_id"]) for event in events}
    assert reported >= {("unwrap", "footer"), ("unwrap", "pii"), ("wrap", "pii"), ("seal", "pii")}


def test_the_passphrase_of_a_keyring_is_not_tried_on_another(folder: Path) -> None:
    private(folder / "phrase", b"correct horse\n")
    for name, how in (("old", {"passphrase": "correct horse"}), ("new", {"plaintext": True})):
        modcrypt.Keyring.create(folder / f"{name}.keyring", **how).create_key("k")
        policy = f'kms = "file:{name}.keyring"\nfooter_key = "k"\n'
        (folder / f"{name}.toml").write_text(policy)
    old = ("--policy", "old.toml", "--passphrase", "file:phrase")
    run_ok(folder, "encrypt", *old, "plain.parquet", "old.parquet")
    for number, name in enumerate(("new", "old")):
        run_ok(folder, "rekey", *old, "--to", f"{name}.toml", "old.parquet", f"{number}.parquet")


def test_unchanged_columns_keep_their_bytes_on_request(folder: Path) -> None:
    write_policy(
        folder, "new.toml", 'aad_prefix = "old/prefix"\ncolumn_keys."file:name.key" = ["name"]\n'
    )
    said = json.loads(run_ok(folder, "rekey", *OLD, *NEW_KEY, "--keep-unchanged", *FILES, "--json"))
    assert said["kept"] == ["name"]
    properties = modcrypt.FileDecryptionProperties(
        footer_key=OTHER_KEY, column_keys={"name": COLUMN_KEY}
    )
    assert modcrypt.read_table(folder / "out.parquet", decryption=properties).equals(small_table())


def test_a_signed_footer_that_was_altered_is_not_signed_anew(folder: Path) -> None:
    signed = ("--plaintext-footer", "--plaintext-column", "flag", "--force")
    run_ok(folder, "encrypt", *OLD, *signed, "plain.parquet", "sealed.parquet")
    data = bytearray((folder / "sealed.parquet").read_bytes())
    data[data.rindex(b"pandas") if b"pandas" in data else data.rindex(b"flag")] ^= 1
    (folder / "sealed.parquet").write_bytes(data)
    result = invoke(folder, "rekey", *OLD, *NEW_KEY, *FILES)
    assert (result.exit_code, "signature" in result.stderr) == (1, True)
    assert not (folder / "out.parquet").exists()


# --- mask ----------------------------------------------------------------------------------------


def test_columns_are_masked_under_the_keys_that_the_file_has(ring: Path) -> None:
    kms = ("--kms", "file:lake.keyring#footer")
    own = ("--column-master-key", "name=pii", "--column-master-key", "price=pii", "--force")
    run_ok(ring, "encrypt", *kms, *own, "plain.parquet", "sealed.parquet")
    how = ("--null", "price", "--drop", "address", "--hash", "name", "--hash-key", "file:new.key")
    said = check_refusal(invoke(ring, "mask", *kms, *how, *FILES), "key-material", 3)
    assert "'pii', not under 'footer'" in said  # the URI says that it is all under `footer`
    said = json.loads(run_ok(ring, "mask", "--kms", "file:lake.keyring", *how, *FILES, "--json"))
    assert said["nulls"] == ["price"]
    assert said["hashed"] == ["name"]
    assert said["dropped"] == ["address.zip", "address.city"]
    theirs = read_by_kms(ring / "out.parquet")
    table = small_table()
    assert theirs["price"].null_count == table.num_rows
    assert "address" not in theirs.column_names
    expected = [
        None if name is None else mask_hash(OTHER_KEY, name.encode())
        for name in table["name"].to_pylist()
    ]
    assert theirs["name"].to_pylist() == expected
    for name in ("id", "score", "day", "flag", "tags"):
        assert theirs[name].equals(table[name])


def test_masked_columns_get_new_keys_on_request(folder: Path) -> None:
    run_ok(folder, "mask", *OLD, "--drop", "name", *NEW_KEY, *FILES)
    theirs = read_with_pyarrow(folder / "out.parquet", OTHER_KEY)
    assert theirs.equals(small_table().drop_columns(["name"]))


def test_a_folder_is_masked_in_place(folder: Path) -> None:
    (folder / "lake").mkdir()
    for number in range(2):
        (folder / "sealed.parquet").rename(folder / "lake" / f"{number}.parquet")
        run_ok(folder, "encrypt", *KEY, "plain.parquet", "sealed.parquet")
    masked = ("mask", *OLD, "--drop", "name", "--in-place", "lake", "--record", "run.jsonl")
    assert run_ok(folder, *masked).startswith("2 files: 2 masked; ")
    assert run_ok(folder, *masked) == "2 files: 2 current\n"
    for number in range(2):
        path = folder / "lake" / f"{number}.parquet"
        theirs = read_with_pyarrow(path, FOOTER_KEY, None if number else b"old/prefix")
        assert theirs.equals(small_table().drop_columns(["name"]))


def test_hashes_of_a_recorded_run_are_not_hashed_again(folder: Path) -> None:
    """Neither with the same key, which the file's note names, nor with another, by the record."""
    (folder / "lake").mkdir()
    (folder / "sealed.parquet").rename(folder / "lake" / "a.parquet")
    how = ("--hash", "name", "--in-place", "lake", "--record", "run.jsonl", "--hash-key")
    assert run_ok(folder, "mask", *OLD, *how, "file:new.key").startswith("1 file: 1 masked; ")
    masked = (folder / "lake" / "a.parquet").read_bytes()
    private(folder / "other.key", b"another key of 24 bytes!")
    noted = (folder / "run.jsonl").read_bytes()
    for record in (noted, noted[: noted.rindex(b'"source"') - 9]):  # killed before it was noted
        (folder / "run.jsonl").write_bytes(record)
        result = invoke(folder, "mask", *OLD, *how, "file:other.key")
        assert (result.exit_code, "already processed" in result.stdout) == (74, True)
        assert run_ok(folder, "mask", *OLD, *how, "file:new.key") == "1 file: 1 current\n"
        assert (folder / "lake" / "a.parquet").read_bytes() == masked


# --- share ---------------------------------------------------------------------------------------


def test_a_partner_gets_the_columns_that_are_named_and_no_others(folder: Path) -> None:
    options = (*KEY, *SIGNED, "--column", "id", "--column", "tags")
    said = json.loads(run_ok(folder, "share", *options, *FILES, "--json"))
    assert set(said["resealed"]) == {"id", "tags.list.element"}
    keys = pe.create_decryption_properties(footer_key=OTHER_KEY)
    with pq.ParquetFile(folder / "out.parquet", decryption_properties=keys) as file:
        assert file.read().equals(small_table().select(["id", "tags"]))
    data = (folder / "out.parquet").read_bytes()  # whose footer is in plaintext
    assert not [name for name in (b"address", b"price", b"name-1", b"score") if name in data]


def test_sharing_needs_no_keys_of_other_columns(folder: Path) -> None:
    check_refusal(invoke(folder, "share", *KEY, *NEW_KEY, "--column", "name", *FILES), "no-key", 3)
    run_ok(folder, "share", *KEY, *NEW_KEY, "--column", "id", *FILES)
    theirs = read_with_pyarrow(folder / "out.parquet", OTHER_KEY)
    assert theirs.equals(small_table().select(["id"]))


def test_a_folder_is_shared_by_key_service(ring: Path) -> None:
    (ring / "lake").mkdir()
    for number in range(2):
        run_ok(ring, "encrypt", *OLD, "plain.parquet", f"lake/{number}.parquet")
    (ring / "pii.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "pii"\n')
    new = ("--to", "pii.toml", "--column", "address")
    result = invoke(ring, "share", *KEY, *new, "lake", "partner", "--json")
    files, totals = lines(result)
    assert (result.exit_code, totals["shared"]) == (0, 2)
    assert [file["result"] for file in files] == ["shared", "shared"]
    expected = small_table().select(["address"])
    assert read_by_kms(ring / "partner" / "1.parquet").equals(expected)


# --- options -------------------------------------------------------------------------------------


@each_case(
    ("arguments", "part"),
    [
        (("rekey", *OLD, *FILES), "name the keys of the new files by --to"),
        (("share", *OLD, "--column", "id", *FILES), "name the keys of the new files by --to"),
        (("rekey", *OLD, *NEW_KEY, *NEW_KEY, *FILES), "one policy"),
        (("rekey", *OLD, "--to", "file:ring#new", *FILES), "not a master key; name it in a policy"),
        (("rekey", *OLD, "--to", "mixed.toml", *FILES), "ids of master keys throughout"),
        (("rekey", *OLD, "--to", "both.toml", *FILES), "need no key service: remove kms"),
        (("rekey", *OLD, "--kms", "file:x", *NEW_KEY, *FILES), "--key, --column-key: keys"),
        (("cat", "--policy", "new.toml", "--key", "file:x", "sealed.parquet"), "--key: keys come"),
        (("cat", "--policy", "new.toml", "--kms", "file:x", "sealed.parquet"), "--kms: the policy"),
        (("keys", "list", "--policy", "new.toml"), "the policy names keys by reference"),
        (("rekey", *OLD, *NEW_KEY, "--audit", "x", *FILES), "--audit: this needs --kms"),
        (("rekey", *OLD, "--to", "misspelt.toml", *FILES), "nmae"),
        (("rekey", *OLD, *NEW_KEY, "sealed.parquet"), "--in-place"),
        (("rekey", *OLD, *NEW_KEY, "-", "out"), "pipes"),
        (("rekey", *OLD, *NEW_KEY, "--no-check-footer", *FILES), "--no-check-footer"),
        (("share", *OLD, *NEW_KEY, "--column", "id", "--in-place", *FILES), "--in-place"),
        (("mask", *OLD, "--null", "id", "--on-missing-key", "drop", *FILES), "--on-missing-key"),
        (("mask", *OLD, *FILES), "use --null, --hash or --drop"),
        (("mask", *OLD, "--hash", "id", *FILES), "--hash needs a key"),
        (("mask", *OLD, "--null", "id", "--hash-key", "file:x", *FILES), "to hash by --hash"),
        (
            ("mask", *OLD, "--hash", "id", "--hash-key", "file:x", "--hash-key", "env:y", *FILES),
            "given twice",
        ),
        (("mask", *OLD, "--null", "nmae", *FILES), "nmae"),
        (("mask", *OLD, "--null", "id", "--drop", "id", *FILES), "id"),
        (("share", *OLD, *NEW_KEY, *FILES), "use --column"),
        (("share", *OLD, *NEW_KEY, "--column", "nmae", *FILES), "nmae"),
        (("share", *OLD, *NEW_KEY, "--column", "id", "sealed.parquet"), "DESTINATION"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    folder: Path, arguments: tuple[str, ...], part: str
) -> None:
    write_policy(folder, "mixed.toml", 'column_keys.pii = ["name"]\n')
    write_policy(folder, "both.toml", 'kms = "file:lake.keyring"\n')
    write_policy(folder, "misspelt.toml", 'plaintext_columns = ["nmae"]\n')
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert part in check_refusal(invoke(folder, *arguments))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["rekey", "mask", "share"])
def test_the_examples_of_the_help_texts_run(folder: Path, command: str) -> None:
    """Typed as they stand into a shell, in a folder with the files they name."""
    orders = pa.table({"price": [1.5, 2.5], "shipped": ["a", "b"], "customer": ["x", "y"]})
    write_plain(folder / "orders.parquet", orders)
    for name in ("price", "next", "next-price", "hash", "partner"):
        private(folder / f"{name}.key", hashlib.sha256(name.encode()).digest()[:16])
    (folder / "partner.toml").write_text('footer_key = "file:partner.key"\n')
    (folder / "next.toml").write_text(
        'footer_key = "file:next.key"\ncolumn_keys."file:next-price.key" = ["price"]\n'
    )
    (folder / "partner.pub").write_text(f"{modcrypt.Identity.generate().recipient}\n")
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer"), ring.create_key("pii")
    policy = 'kms = "file:lake.keyring"\nfooter_key = "footer"\ncolumn_keys.pii = ["price"]\n'
    (folder / "lake.toml").write_text(policy)
    (folder / "new.toml").write_text(policy.replace("footer_key", 'aad_prefix = "x"\nfooter_key'))
    keys = (*KEY, "--column-key", "price=file:price.key")
    run_ok(folder, "encrypt", *keys, "orders.parquet", "orders.enc.parquet")
    (folder / "lake").mkdir()
    run_ok(folder, "encrypt", "--policy", "lake.toml", "orders.parquet", "lake/0.parquet")
    examples = examples_of(folder, command)
    assert len(examples) == {"rekey": 3, "mask": 2, "share": 2}[command]
    for example in examples:
        answer = run(folder, *example)
        assert (answer.returncode, answer.stderr) == (0, "")


# --- fields that modcrypt does not know -----------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        ("encrypt", (*KEY, "--plaintext-footer", "plain.parquet", "out.parquet")),
        ("decrypt", (*KEY, "--on-missing-key", "drop", "sealed.parquet", "out.parquet")),
        ("rekey", (*OLD, *SIGNED, "sealed.parquet", "out.parquet")),
        ("mask", (*OLD, "--drop", "name", *SIGNED, *FILES)),
        ("share", (*OLD, "--column", "id", *SIGNED, *FILES)),
    ],
)
def test_unknown_fields_are_kept_on_request_alone(
    folder: Path, verb: str, how: tuple[str, ...]
) -> None:
    plain, _ = with_unknown_fields((folder / "plain.parquet").read_bytes())
    (folder / "plain.parquet").write_bytes(plain)
    keep = "--keep-unknown-fields"
    run_ok(folder, "encrypt", *OLD, keep, "--force", "plain.parquet", "sealed.parquet")
    assert invoke(folder, verb, *how).exit_code == 0
    assert marker("FileMetaData") not in (folder / "out.parquet").read_bytes()
    assert invoke(folder, verb, keep, "--force", *how).exit_code == 0
    assert marker("FileMetaData") in (folder / "out.parquet").read_bytes()

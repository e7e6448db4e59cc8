"""`modcrypt.toml`: what it may say, all mistakes at once, and where it is found."""

from __future__ import annotations

import json
import os
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from modcrypt.lake.declarations.columns import ColumnRule
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.declarations.declaration_faults import (
    MAX_FAULTS,
    MemberPath,
    TomlLines,
    find_lines,
)
from modcrypt.lake.declarations.declaration_file import (
    open_declaration,
    read_content,
    require_valid,
)
from modcrypt.lake.declarations.declaration_parsing import parse_declaration
from modcrypt.lake.declarations.declaration_path import find_declaration
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, trust_lake

FULL = """
kms = "hcvault://vault.example.com/transit"

[dataset.orders]
location = "s3://lake/orders"
source = "landing"
include = "*.parquet"
partitions = ["day", "tenant"]
strict = true
footer_key = "tenant-{partition.tenant}"
plaintext_columns = ["country", "*_code"]
kms_aad = "lake"
encryption_algorithm = "AES_GCM_V1"
plaintext_footer = true
aad_prefix = "orders/{partition.day}/{path}"
store_aad_prefix = false
data_page_v2_levels = "plaintext"
double_wrapping = false
internal_key_material = false
data_key_length_bits = 256
kek_length_bits = 192
cache_lifetime_seconds = 12.5

[dataset.orders.column_keys]
"pii-{partition.tenant}" = ["ssn", "address.*", { pii = true, level = 3 }]

[dataset.orders.previous]
master_keys = { old = "tenant-acme" }
aad_prefixes = ["orders/{name}"]
algorithms = ["AES_GCM_CTR_V1"]

[dataset.orders.rotation]
max_version_age = "52w"
rewrap_after = "30d"

[dataset."orders.eu"]
location = "eu"
footer_key = "eu"
"""

WRONG = """\
kms = "file:lake.keyring"
datset = 1

[dataset.orders]
locaton = "orders"
partitions = ["day", "tenant"]
footer_key = "tenant-{partition.tennant}"
plaintext_columns = ["country", "*_x"]
aad_prefix = "orders/{pth}"
data_key_length_bits = 127

[dataset.orders.column_keys]
pii = ["ssn",
   "country",
   3]
empty = []
"a-{partition.day}{partition.tenant}" = ["b"]

[dataset.orders.previous]
master_keys = { old = "pi" }
algorithms = ["AES_GCM_V2"]

[dataset.orders.rotation]
max_age = "365d"
rewrap_after = "soon"
"""


def parse(text: str, folder: Path = Path("/lake")) -> LakeDeclaration:
    declaration, faults = parse_declaration(text, folder / "modcrypt.toml")
    assert not faults
    assert declaration is not None
    return declaration


def test_a_declaration_says_all_of_it() -> None:
    lake = parse(FULL)
    orders, europe = lake.datasets.values()
    assert (lake.kms, europe.name) == ("hcvault://vault.example.com/transit", "orders.eu")
    assert (orders.location, europe.location) == ("s3://lake/orders", "/lake/eu")
    assert orders.rules == {
        "pii-{partition.tenant}": (
            ColumnRule("ssn"), ColumnRule("address.*"),
            ColumnRule(metadata=(("level", "3"), ("pii", "true"))),
        ),
        None: (ColumnRule("country"), ColumnRule("*_code")),
    }  # fmt: skip
    assert (orders.strict, orders.include, orders.partitions) == (
        True, "*.parquet", ("day", "tenant"),
    )  # fmt: skip
    assert orders.previous.master_keys == {"old": "tenant-acme"}
    assert orders.rotation.max_version_age == 52 * 7 * 86400
    assert orders.rotation.rewrap_after == 30 * 86400
    assert (orders.source, europe.source) == ("/lake/landing", None)
    assert orders.binds_paths
    assert not europe.binds_paths


@each_case(
    "location, folder, pattern",
    [
        ("orders/*.parquet", "/lake/orders", "*.parquet"),
        ("orders/day=*/part-?.parquet", "/lake/orders", "day=*/part-?.parquet"),
        ("s3://lake/orders/2026-*/*", "s3://lake/orders", "2026-*/*"),
        ("*.parquet", "/lake", "*.parquet"),
        ("/*.parquet", "/", "*.parquet"),
        ("orders", "/lake/orders", None),
    ],
)
def test_a_location_may_be_a_pattern(location: str, folder: str, pattern: str | None) -> None:
    dataset = parse(f'kms = "file:k"\n[dataset.a]\nlocation = "{location}"\nfooter_key = "k"')
    found = dataset.datasets["a"]
    assert (found.location, found.include) == (folder, pattern)


def test_all_mistakes_are_reported_at_once_with_line_and_suggestion() -> None:
    declaration, faults = parse_declaration(WRONG, Path("/lake/modcrypt.toml"))
    assert declaration is None
    assert [str(fault) for fault in faults] == [
        "line 2: unknown member datset; did you mean dataset?",
        "line 4: location must be the path or URL of a folder or file",
        "line 5: unknown member locaton; did you mean location?",
        "line 7: unknown partition tennant in 'tenant-{partition.tennant}'; did you mean tenant?",
        "line 8: country is already in column_keys.pii",
        "line 9: 'orders/{pth}' has an unknown placeholder; use {partition.NAME}, {path}, {name}",
        "line 10: data_key_length_bits must be 128, 192 or 256",
        "line 13: pii: expected a column name, a pattern, or field metadata such as { pii = true }",
        "line 16: the master key empty has no columns",
        "line 17: 'a-{partition.day}{partition.tenant}': separate the two partitions by text",
        "line 21: algorithms must be a list of AES_GCM_V1 and AES_GCM_CTR_V1",
        "line 24: unknown member max_age; did you mean max_version_age?",
        "line 25: rewrap_after must be a number of minutes, hours, days or weeks, such as 90d",
    ]


@each_case(
    "text, message",
    [
        ("", "no dataset is declared; add a table [dataset.NAME]"),
        ("kms = 3", "line 1: kms must be a URI, such as file:lake.keyring"),
        ("dataset = 3", "line 1: declare each dataset as a table [dataset.NAME]"),
        ("[dataset]\norders = 3", "line 1: declare each dataset as a table [dataset.NAME]"),
        (
            '[dataset."a/b"]\n',
            "line 1: name datasets by letters, digits, and . _ - after the first",
        ),
        ('[dataset.a]\npolicy = "none.toml"', "line 2: none.toml: No such file or directory"),
        ("[dataset.a]\nstrict = 1", "line 2: strict must be true or false"),
        ("[dataset.a]\nprevious = 1", "line 2: previous must be a table"),
        (
            '[dataset.a]\nlocation = "a"\nfooter_key = "k"\n[dataset.a.previous]\n'
            'master_keys = { o = "kk" }',
            "line 5: kk is not a master key of the dataset; did you mean k?",
        ),
        (
            '[dataset.a]\nlocation = "a"\nfooter_key = "k"\n[dataset.a.previous]\n'
            'master_keys = { k = "k" }',
            "line 5: k is still a master key of the dataset, so it is not a previous one",
        ),
        (
            '[dataset.a]\nlocation = "a"\npartitions = ["p"]\nfooter_key = "k-{partition.p}"\n'
            'subjects = "s.db"\nsubject_key = "id"\nsubject_columns = ["x"]',
            "line 4: footer_key protects the vault of subjects, too: name no partition in it",
        ),
        (
            '[dataset.a]\nlocation = "~no-such-user/a"\nfooter_key = "k"\n'
            'recipients = ["~no-such-user/r.pub"]',
            "line 4: ~no-such-user/r.pub: No such file or directory",
        ),
        *(
            (
                f'[dataset.a]\nlocation = "{location}"\nfooter_key = "k"\nsource = "{source}"',
                "line 4: source and location must be folders outside of each other",
            )
            for location, source in [
                ("in", "./in/"),
                ("in", "in/new"),
                ("in/new/*.parquet", "in"),
                ("s3://b/in", "s3://b"),
            ]
        ),
        ("a = [", "not TOML"),
    ],
)
def test_each_mistake_has_a_message(text: str, message: str, tmp_path: Path) -> None:
    _, faults = parse_declaration(text, tmp_path / "modcrypt.toml", "file:k")
    assert any(str(fault).startswith(message) for fault in faults), faults


DATASET = 'kms="file:k"\n[dataset.a]\nlocation="a"\nfooter_key="k"\n'


@each_case(
    "head, mistake",
    [
        ('kms="file:k"\n', "[dataset.d{}]\nlocatio='x'\n"),
        (DATASET, "member{} = 1\n"),
        (f"{DATASET}[dataset.a.column_keys]\n", "'k{{partition.p{}}}' = ['c{}']\n"),
        (f"{DATASET}[dataset.a.column_keys]\n", "k{} = ['c']\n"),
        (f"{DATASET}[dataset.a.previous.master_keys]\n", "old{} = 'new{}'\n"),
        ('kms="file:k"\n', "[dataset.d{}]\nkind='iceberg'\nlocatio='x'\n"),
    ],
)
def test_many_mistakes_cost_the_search_for_the_first_hundred(
    head: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    find = TomlLines.find

    def count(self: TomlLines, path: MemberPath, text: str = "") -> int | None:
        searches.append(path)
        return find(self, path, text)

    monkeypatch.setattr(TomlLines, "find", count)
    text = head + "".join(mistake.format(n, n) for n in range(1500))
    declaration, faults = parse_declaration(text, Path("/lake/modcrypt.toml"))
    assert declaration is None
    assert len(searches) == MAX_FAULTS == len(faults) - 1
    assert re.fullmatch(r"and \d,\d{3} more mistakes", str(faults[-1])), faults[-1]


@each_case(
    "location", ["a" * (1 << 18), "{" * (1 << 18), "/" * (1 << 18), f"{'a/' * (1 << 17)}*.parquet"]
)
def test_a_long_location_is_read_once(location: str) -> None:
    parse(f'kms = "file:k"\n[dataset.a]\nlocation = "{location}"\nfooter_key = "k"')


def test_a_policy_can_be_included_and_its_members_replaced(tmp_path: Path) -> None:
    (tmp_path / "pii.toml").write_text(
        'kms = "file:other"\nfooter_key = "f"\naad_prefix = "x/{path}"\ncolumn_keys = {p = ["a"]}\n'
    )
    text = '[dataset.a]\nlocation = "a"\npolicy = "pii.toml"\nfooter_key = "g"\n'
    declaration, faults = parse_declaration(text, tmp_path / "modcrypt.toml", "file:k")
    assert declaration is not None, faults
    dataset = declaration.datasets["a"]
    assert (dataset.footer_key, dataset.aad_prefix) == ("g", "x/{path}")
    assert dataset.key_templates == ["g", "p"]
    assert declaration.kms == f"file:{tmp_path}/k"
    (tmp_path / "pii.toml").write_text('footer_kye = "f"\nplaintext_footer = true\n')
    _, faults = parse_declaration(text, tmp_path / "modcrypt.toml", "file:k")
    expected = "line 3: pii.toml: unknown member footer_kye; did you mean footer_key?"
    assert [str(fault) for fault in faults] == [expected]


def test_a_message_never_repeats_the_text_of_a_file_that_is_no_declaration(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    (tmp_path / "modcrypt.toml").write_text(secret)
    with pytest.raises(ValueError, match="not TOML") as caught:
        require_valid(read_content(tmp_path / "modcrypt.toml"))
    assert secret not in str(caught.value)
    for text in (f'"{secret}" = 1', '[dataset.a]\npolicy = "other.toml"\nlocation = "a"'):
        (tmp_path / "modcrypt.toml").write_text(text)
        (tmp_path / "other.toml").write_text(f'"{secret}" = 1')
        faults = read_content(tmp_path / "modcrypt.toml").faults
        assert faults
        assert secret not in str(faults)


# --- where it is found ---------------------------------------------------------------------------


def test_the_declaration_is_found_in_a_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.delenv("MODCRYPT_CONFIG", raising=False)
    monkeypatch.chdir(below)
    (tmp_path / "modcrypt.toml").write_text(DECLARATION)
    assert find_declaration() == tmp_path / "modcrypt.toml"
    (tmp_path / "a" / "modcrypt.toml").write_text(DECLARATION)
    assert find_declaration() == tmp_path / "a" / "modcrypt.toml"
    monkeypatch.setenv("MODCRYPT_CONFIG", "elsewhere.toml")
    assert find_declaration() == Path("elsewhere.toml")
    assert find_declaration("named.toml") == Path("named.toml")


def test_a_declaration_that_others_may_have_written_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "modcrypt.toml"
    path.write_text(DECLARATION)
    trust_lake(tmp_path)
    for mode in (0o664, 0o666, 0o646):
        path.chmod(mode)
        with pytest.raises(ValueError, match="is writable by others"):
            open_declaration()
    assert open_declaration("modcrypt.toml") is not None
    path.chmod(0o644)
    assert open_declaration() is not None
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match="the folder of"):
        open_declaration()
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:  # only root gives files away
        os.chown(path, 12345, -1)
        with pytest.raises(ValueError, match="belongs to another user"):
            open_declaration()


def test_relative_locations_and_keyrings_belong_to_the_folder_of_the_declaration(
    tmp_path: Path,
) -> None:
    (tmp_path / "modcrypt.toml").write_text(DECLARATION)
    lake = require_valid(read_content(tmp_path / "modcrypt.toml"))
    assert lake.kms == f"file:{tmp_path}/lake.keyring"
    assert lake.datasets["orders"].location == str(tmp_path / "orders")


def test_the_environment_names_a_key_service_if_the_declaration_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "modcrypt.toml"
    path.write_text('[dataset.a]\nlocation = "a"\nfooter_key = "k"\n')
    monkeypatch.delenv("MODCRYPT_KMS", raising=False)
    monkeypatch.delenv("VAULT_ADDR", raising=False)
    faults = read_content(path).faults
    assert [str(f) for f in faults] == [
        "no key service is named; add kms = URI, or set MODCRYPT_KMS"
    ]
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:8200")
    assert require_valid(read_content(path)).kms == "hcvault://127.0.0.1:8200/transit?tls=off"
    monkeypatch.setenv("MODCRYPT_KMS", "file:/keys")
    assert require_valid(read_content(path)).kms == "file:/keys"
    path.write_text(DECLARATION)
    assert require_valid(read_content(path)).kms.endswith("lake.keyring")


# --- lines ---------------------------------------------------------------------------------------


def test_lines_are_found_in_every_form_of_toml() -> None:
    lines = find_lines(
        'a = """\nb = 1\n"""\n["x.y".z]\nc.d = [\n  1,\n  "q = 2",\n]\n# e = 1\nf = 1'
    )
    assert lines.numbers == {
        ("a",): 1, ("x.y", "z"): 4, ("x.y", "z", "c", "d"): 5, ("x.y", "z", "f"): 10,
    }  # fmt: skip
    assert lines.find(("x.y", "z", "c", "d"), "q") == 7
    assert lines.find(("x.y", "z", "none")) == 4
    assert lines.find(("none",)) is None


# --- the schema for editors ----------------------------------------------------------------------


def schema() -> dict[str, Any]:
    text = (files("modcrypt.lake.declarations") / "modcrypt.schema.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_schema_accepts_what_the_parser_accepts() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    jsonschema.Draft202012Validator.check_schema(schema())
    for text in (FULL, DECLARATION):
        assert not list(validator.iter_errors(tomllib.loads(text)))


def test_the_schema_refuses_mistakes() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    places = {".".join(map(str, e.path)) for e in validator.iter_errors(tomllib.loads(WRONG))}
    assert {"", "dataset.orders", "dataset.orders.rotation.rewrap_after"} <= places

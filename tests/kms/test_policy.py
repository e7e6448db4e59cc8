"""Policies: what one may say, all that is wrong with it at once, and that it holds no secret."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt import KeyTools, Policy
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MemoryKms

FULL = """
kms = "hcvault://vault.example.com/transit"
kms_aad = "lake"
footer_key = "lake-footer"
plaintext_columns = ["country", "geo.region"]
encryption_algorithm = "AES_GCM_CTR_V1"
plaintext_footer = true
aad_prefix = "people/{name}"
store_aad_prefix = false
data_page_v2_levels = "plaintext"
double_wrapping = false
internal_key_material = false
data_key_length_bits = 256
kek_length_bits = 192
cache_lifetime_seconds = 12.5
signed_by = ["writer.pub"]
seal_at_least = 7
subjects = "postgresql://vault.example.com/people"
subject_key = "customer_id"
subject_columns = ["name", "address.*"]
subject_dataset = "people"

[column_keys]
lake-pii = ["ssn", "address"]
"lake.geo" = ["geo"]
"""


# --- what it says ---------------------------------------------------------------------------------


def test_a_policy_says_all_of_it_in_toml() -> None:
    assert Policy.loads(FULL) == Policy(
        kms="hcvault://vault.example.com/transit",
        kms_aad="lake",
        footer_key="lake-footer",
        column_keys={"lake-pii": ("ssn", "address"), "lake.geo": ("geo",)},
        plaintext_columns=("country", "geo.region"),
        encryption_algorithm="AES_GCM_CTR_V1",
        plaintext_footer=True,
        aad_prefix="people/{name}",
        store_aad_prefix=False,
        data_page_v2_levels="plaintext",
        double_wrapping=False,
        internal_key_material=False,
        data_key_length_bits=256,
        kek_length_bits=192,
        cache_lifetime_seconds=12.5,
        signed_by=("writer.pub",),
        seal_at_least=7,
        subjects="postgresql://vault.example.com/people",
        subject_key="customer_id",
        subject_columns=("name", "address.*"),
        subject_dataset="people",
    )


def test_the_example_of_full_names_every_member() -> None:
    """So that a member that is added is tried here too."""
    found = Policy.loads(FULL)
    for field in dataclasses.fields(Policy):
        assert getattr(found, field.name) != field.default, field.name


def test_the_footer_key_is_all_that_a_policy_must_say() -> None:
    policy = Policy.loads('footer_key = "k"')
    assert policy == Policy(footer_key="k")
    assert policy.column_keys == {}
    assert policy.plaintext_columns == ()
    assert policy.double_wrapping
    assert policy.internal_key_material
    assert policy.encryption_algorithm == "AES_GCM_V1"
    assert not policy.plaintext_footer


def test_the_example_at_the_head_of_the_room_loads() -> None:
    import textwrap

    from modcrypt.kms import policy

    assert policy.__doc__ is not None
    example = textwrap.dedent(policy.__doc__.partition("\n\n")[2].partition("\n\nInstead")[0])
    found = Policy.loads(example)
    assert found.footer_key == "lake-footer"
    assert found.key_of_column == {"ssn": "lake-pii", "address": "lake-pii"}
    assert found.prefix_of("a.parquet") == b"people/a.parquet"


@each_case(
    ("template", "name", "prefix"),
    [
        (None, "a", None),
        ("lake", "a", b"lake"),
        ("{name}", "a.parquet", b"a.parquet"),
        ("x/{name}/{name}", "ä", "x/ä/ä".encode()),
        ("{name}", "{name}", b"{name}"),
        ("x{name}", os.fsdecode(b"a\xff"), b"xa\xff"),
        ("x/{path}", "y=1/a.parquet", b"x/y=1/a.parquet"),
        ("x/{name}", "y=1/a.parquet", b"x/a.parquet"),
        ("{path}", "{name}/{path}", b"{name}/{path}"),
    ],
)
def test_the_prefix_takes_up_the_files_path_or_name(
    template: str | None, name: str, prefix: bytes | None
) -> None:
    assert Policy(footer_key="k", aad_prefix=template).prefix_of(name) == prefix


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.text(), st.text())
def test_files_of_other_paths_have_other_prefixes(template: str, one: str, other: str) -> None:
    try:
        policy = Policy(footer_key="k", aad_prefix=template + "{path}")
        prefixes = [policy.prefix_of(one), policy.prefix_of(other)]
    except ValueError:  # another placeholder, or no name that a file can have
        return
    assert (prefixes[0] == prefixes[1]) == (one == other)


# --- what can be wrong ----------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no footer key": ({"footer_key": ""}, "master key"),
    "footer key with a control character": ({"footer_key": "a\nb"}, "master key"),
    "column master key of no letters": ({"column_keys": {"": ["a"]}}, "master key"),
    "footer key is a number": ({"footer_key": 5}, "footer_key"),
    "footer key is bytes": ({"footer_key": b"k"}, "footer_key"),
    "column keys in a list": ({"column_keys": [["k", "a"]]}, "column_keys"),
    "columns in one string": ({"column_keys": {"k": "abc"}}, "column_keys of k"),
    "a column is a number": ({"column_keys": {"k": ["a", 5]}}, "column_keys of k"),
    "no columns": ({"column_keys": {"k2": [], "k1": []}}, "k1, k2"),
    "columns under two keys": ({"column_keys": {"k": ["b", "a"], "l": ["a", "b"]}}, "a, b"),
    "a column twice under one": ({"column_keys": {"k": ["a", "a"]}}, "twice: a"),
    "a key and plaintext": (
        {"column_keys": {"k": ["a"]}, "plaintext_columns": ["a"]},
        "twice: a",
    ),
    "plaintext columns in one string": ({"plaintext_columns": "a"}, "plaintext_columns"),
    "plaintext columns are null": ({"plaintext_columns": None}, "plaintext_columns"),
    "kms is a number": ({"kms": 5}, "kms"),
    "kms_aad is bytes": ({"kms_aad": b"x"}, "kms_aad"),
    "algorithm": ({"encryption_algorithm": "AES"}, "AES_GCM_V1"),
    "algorithm is null": ({"encryption_algorithm": None}, "encryption_algorithm"),
    "levels": ({"data_page_v2_levels": "clear"}, "data_page_v2_levels"),
    "footer mode in words": ({"plaintext_footer": "false"}, "plaintext_footer"),
    "footer mode is a number": ({"plaintext_footer": 1}, "plaintext_footer"),
    "wrapping is null": ({"double_wrapping": None}, "double_wrapping"),
    "storage in words": ({"internal_key_material": "yes"}, "internal_key_material"),
    "storing is a number": ({"store_aad_prefix": 0}, "store_aad_prefix"),
    "key length": ({"data_key_length_bits": 129}, "data_key_length_bits"),
    "key length in bytes": ({"data_key_length_bits": 16}, "data_key_length_bits"),
    "key length in words": ({"data_key_length_bits": "128"}, "data_key_length_bits"),
    "key length with a point": ({"data_key_length_bits": 128.0}, "data_key_length_bits"),
    "key length is true": ({"data_key_length_bits": True}, "data_key_length_bits"),
    "kek length": ({"kek_length_bits": 512}, "kek_length_bits"),
    "lifetime below zero": ({"cache_lifetime_seconds": -1}, "cache_lifetime_seconds"),
    "lifetime is no number": ({"cache_lifetime_seconds": float("nan")}, "cache_lifetime_seconds"),
    "lifetime in words": ({"cache_lifetime_seconds": "1h"}, "cache_lifetime_seconds"),
    "prefix of no letters": ({"aad_prefix": ""}, "aad_prefix"),
    "prefix with a number": ({"aad_prefix": "x{i}"}, "aad_prefix_template"),
    "prefix with another placeholder": ({"aad_prefix": "x{date}"}, "name"),
    "prefix with a brace": ({"aad_prefix": "x}"}, "name"),
    "prefix is bytes": ({"aad_prefix": b"x"}, "aad_prefix"),
}


@each_case("what", WRONG)
def test_what_is_wrong_is_refused_and_named(what: str) -> None:
    members, named = WRONG[what]
    with pytest.raises(ValueError, match="invalid policy") as caught:
        Policy(**{"footer_key": "k", **members})
    assert named in str(caught.value)


def test_every_fault_is_listed_at_once() -> None:
    faults = [
        "no footer key",
        "columns under two keys",
        "algorithm",
        "levels",
        "footer mode in words",
        "wrapping is null",
        "key length",
        "kek length",
        "lifetime in words",
        "prefix with a number",
        "kms is a number",
    ]
    members: dict[str, Any] = {}
    for what in faults:
        members |= WRONG[what][0]
    with pytest.raises(ValueError, match="invalid policy") as caught:
        Policy(**members)
    for what in faults:
        assert WRONG[what][1] in str(caught.value), what


def test_every_fault_of_a_file_is_listed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        'footer_keys = "k"\nfooter-key = "k"\nencryption_algorithm = "ROT13"\n'
        'plaintext_footer = "no"\ncolumns = ["a"]\n[column_keys]\nk = ["a", "a"]\n'
    )
    with pytest.raises(ValueError, match="policy") as caught:
        Policy.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for named in ("footer_keys", "footer-key", "columns", "AES_GCM_V1", "plaintext_footer"):
        assert named in message
    assert "twice: a" in message
    assert "footer_key" in message.replace("footer_keys", "")


@pytest.mark.parametrize(
    "data",
    [
        b"footer_key = ", b"footer_key = k", b"[column_keys", b'footer_key = "a"\nfooter_key = "b"',
        b"5", b"\xff\xfe", b'footer_key = "\xff"', b"\0" * 20,
    ],
)  # fmt: skip
def test_what_is_no_toml_is_a_value_error_that_names_the_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="policy") as caught:
        Policy.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_too_large_is_refused_without_reading_on(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading all of it would take the memory of the machine
    with pytest.raises(ValueError, match="the policy is longer than"):
        Policy.load(path)


@pytest.mark.parametrize("columns", [[], ["ssn"]])
def test_master_keys_that_are_no_text_are_refused(columns: list[str]) -> None:
    with pytest.raises(ValueError, match="column_keys must be a table of master keys"):
        Policy(footer_key="k", column_keys={0: columns, "": ["a"]})  # type: ignore[dict-item]


def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Policy.load(tmp_path / "none.toml")


@given(st.text(max_size=80) | st.text("[]{}=\"'\n,.abk_ 15", max_size=60))
def test_any_text_gives_a_policy_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        Policy.loads(text)


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(Policy)]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.binary(max_size=3)
        | st.lists(st.text(max_size=3) | st.integers(), max_size=2)
        | st.dictionaries(
            st.text(max_size=3) | st.integers(), st.lists(st.text(max_size=3)), max_size=2
        ),
    )
)
def test_any_members_give_a_policy_that_is_sound_or_a_value_error(members: dict[str, Any]) -> None:
    try:
        policy = Policy(**{"footer_key": "k", **members})
    except ValueError:
        return
    # What is accepted makes properties: nothing is left to be found out when files are written.
    from tests.support.kms.memory_kms import MemoryKms

    tools = mc.KeyTools.from_policy(policy, kms=MemoryKms(aad=True))
    tools.encryption(policy).for_check()
    tools.decryption(policy)


# --- where the keyring is -------------------------------------------------------------------------


@each_case(
    ("kms", "inside"),
    [
        ("file:lake.keyring", "file:{folder}/lake.keyring"),
        ("file:keys/lake.keyring", "file:{folder}/keys/lake.keyring"),
        ("file:../lake.keyring", "file:{folder}/../lake.keyring"),
        ("file:/etc/lake.keyring", "file:/etc/lake.keyring"),
        ("file:k.json?passphrase=env:PASS", "file:{folder}/k.json?passphrase=env:PASS"),
        ("file:k.json?passphrase=env:P#name", "file:{folder}/k.json?passphrase=env:P#name"),
        ("env:NAME", "env:NAME"),
        ("aws-kms://arn:aws:kms:x", "aws-kms://arn:aws:kms:x"),
        ("pkcs11:token=a;object=b", "pkcs11:token=a;object=b"),
        ("pkcs11:token=file:?pin-source=file:p", "pkcs11:token=file:?pin-source=file:{folder}/p"),
        ("hcvault://h/t?tls=off&token=file:t", "hcvault://h/t?tls=off&token=file:{folder}/t"),
        ("FILE:lake.keyring", "FILE:{folder}/lake.keyring"),
    ],
)
def test_a_keyring_lies_beside_its_policy(kms: str, inside: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f'footer_key = "k"\nkms = "{kms}"\n')
    assert Policy.load(path).kms == inside.format(folder=tmp_path)


@pytest.mark.parametrize("folder", [".", "lake", "a#b", "a?b=c", "a%20b", "a b", "ä"])
def test_the_keyring_opens_from_any_folder_and_after_a_change_of_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = Path(folder)
    where.mkdir(exist_ok=True)
    mc.Keyring.create(where / "k.json", plaintext=True).create_key("k")
    (where / "policy.toml").write_text('kms = "file:k.json"\nfooter_key = "k"\n')
    policy = Policy.load(where / "policy.toml")
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    client: Any = mc.KeyTools.from_policy(policy).client
    assert [key.id for key in client.list_keys()] == ["k"]


def test_text_without_a_folder_keeps_the_path_as_it_is() -> None:
    assert Policy.loads('footer_key = "k"\nkms = "file:k.json"').kms == "file:k.json"


# --- a value --------------------------------------------------------------------------------------


def test_a_policy_is_frozen_and_so_is_what_it_holds() -> None:
    keys, plaintext = {"k": ["a"]}, ["b"]
    policy = Policy(footer_key="f", column_keys=keys, plaintext_columns=plaintext)
    keys["k"].append("c")
    keys["l"] = ["d"]
    plaintext.append("e")
    assert policy.key_of_column == {"a": "k"}
    assert policy.plaintext_columns == ("b",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.footer_key = "g"  # type: ignore[misc]  # the mistake
    with pytest.raises(TypeError):
        keys_of(policy)["l"] = ["d"]


def keys_of(policy: Policy) -> Any:
    """Return column keys typed as `Any`, as untyped callers pass them."""
    return policy.column_keys


def test_a_policy_pickles_copies_and_is_replaced() -> None:
    policy = Policy.loads(FULL)
    for twin in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)):
        assert twin == policy
        assert twin.column_keys == policy.column_keys
        with pytest.raises(TypeError):
            keys_of(twin)["l"] = ["d"]
    other = dataclasses.replace(policy, footer_key="other")
    assert other != policy
    assert other.column_keys == policy.column_keys
    with pytest.raises(ValueError, match="invalid policy"):
        dataclasses.replace(policy, kek_length_bits=1)


# --- no secrets -----------------------------------------------------------------------------------

PASSPHRASE = "Zx9!kQ2vLw8@mN4p"


@pytest.mark.parametrize("name", ["passphrase", "password", "token", "pin", "key"])
def test_a_policy_has_no_place_for_a_secret_and_does_not_repeat_it(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f'footer_key = "k"\n{name} = "{PASSPHRASE}"\n')
    with pytest.raises(ValueError, match=name) as caught:
        Policy.load(path)
    assert PASSPHRASE[:8] not in str(caught.value)


def test_messages_about_values_do_not_repeat_them(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    for line in (
        f'encryption_algorithm = "{PASSPHRASE}"',
        f'kms = ["{PASSPHRASE}"]',
        f'aad_prefix = "{{{PASSPHRASE}}}"',
        f'data_page_v2_levels = "{PASSPHRASE}"',
    ):
        path.write_text(f'footer_key = "k"\n{line}\n')
        with pytest.raises(ValueError, match="invalid policy") as caught:
            Policy.load(path)
        assert PASSPHRASE[:8] not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_passphrase_goes_by_the_tools_and_not_by_the_policy(tmp_path: Path) -> None:
    mc.Keyring.create(tmp_path / "k.json", passphrase=PASSPHRASE).create_key("k")
    (tmp_path / "policy.toml").write_text('kms = "file:k.json"\nfooter_key = "k"\n')
    policy = Policy.load(tmp_path / "policy.toml")
    tools = mc.KeyTools.from_policy(policy, passphrase=PASSPHRASE)
    for shown in (policy, tools, tools.encryption(policy), tools.decryption(policy)):
        assert PASSPHRASE[:8] not in repr(shown)


def test_tools_need_a_key_service_from_somewhere() -> None:
    with pytest.raises(ValueError, match="kms"):
        mc.KeyTools.from_policy(Policy(footer_key="k"))


def test_something_else_than_a_policy_is_a_type_error() -> None:
    from tests.support.kms.memory_kms import MemoryKms

    tools: Any = mc.KeyTools(MemoryKms())
    for other in (None, {"footer_key": "k"}, "policy.toml", Policy):
        with pytest.raises(TypeError, match="Policy"):
            tools.encryption(other)
    with pytest.raises(TypeError, match="Policy"):
        tools.decryption("policy.toml")


# --- hostile TOML --------------------------------------------------------------------------------

DEEP = {
    "arrays": "x=" + "[" * 100_000,
    "closed arrays": "x=" + "[" * 9 + "]" * 9,
    "inline tables": "x=" + "{a=" * 5000,
    "dotted key": "a." * 20_000 + "b=1",
    "spaced key": " .\t".join(["a"] * 9) + "=1",
    "quoted key": ".".join(["'a'", '"b"'] * 5) + "=1",
    "header": "[" + "a." * 9 + "a]",
    "array header": "[[" + "a." * 9 + "a]]",
    "key within a table": "x={" + "a." * 9 + "a=1}",
    "after strings": "x=[\"\"\"a\"\"\"\",'''b''''',\"\\\"c\",'d']\n" + "a." * 9 + "a=1",
    "after a comment": "# \"\"\" ''' \" '\n" + "a." * 9 + "a=1",
}


@each_case("name", DEEP)
def test_deep_toml_is_refused_before_it_is_parsed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="more than 8"):
        Policy.loads("footer_key='a'\n" + DEEP[name])


def test_what_looks_deep_within_strings_is_taken() -> None:
    deep = "a." * 20 + "[[[[[[[[[[{{{{"
    policy = Policy.loads(
        f"# {deep}\nfooter_key='{deep}' # {deep}\nplaintext_columns=[\"{deep}\", '''{deep}x''']\n"
        f'kms_aad="""{deep}\\"""{deep}"""'
    )
    assert policy.footer_key == deep
    assert policy.plaintext_columns == (deep, f"{deep}x")
    assert policy.kms_aad == f'{deep}"""{deep}'


@each_case("text", [
    '"""\\"""\n' * 20_000, "'''" + "x" * 100_000, '"""' + "\\" * 99_999, "a" * 500_000,
    "a" + " " * 500_000, "a . " * 7 + "=", '"' * 99_999, 'a = "' + '\\"' * 400_000,
])  # fmt: skip
def test_hostile_toml_is_refused_in_linear_time(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Policy.loads(text)


@pytest.mark.parametrize(
    "lines",
    [
        [f"t{n} = 1" for n in range(9_999)],
        [f"[t{n}]" for n in range(9_999)],
        ["[column_keys]", *(f"t{n} = []" for n in range(9_999))],
        ["[column_keys]", f"k = {[f'c{n}' for n in range(9_999)] * 2}"],
    ],
)
def test_a_message_names_a_few_of_thousands_of_faults(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"and 9,9\d\d more") as caught:
        Policy.loads("\n".join(['footer_key = "a"', *lines]))
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("text", ["9" * 5000, "-1" + "_1" * 5000])
def test_a_number_of_thousands_of_digits_is_no_toml(text: str) -> None:
    with pytest.raises(ValueError, match=r"not TOML$"):
        Policy.loads(f"cache_lifetime_seconds={text}")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300", "9" * 4000, "604801", "-1"])
def test_a_cache_lifetime_is_at_most_a_week(value: str) -> None:
    with pytest.raises(ValueError, match="cache_lifetime_seconds must be a number, 0 to 604800"):
        Policy.loads(f"footer_key='a'\ncache_lifetime_seconds={value}")
    with pytest.raises(ValueError, match="cache_lifetime_seconds must be a number, 0 to 604800"):
        KeyTools(MemoryKms(), cache_lifetime_seconds=float(value) if len(value) < 9 else 10**400)


def test_a_master_key_id_that_files_cannot_hold_is_refused() -> None:
    for policy in (
        {"footer_key": "k" * 1025},
        {"footer_key": "k", "column_keys": {"k" * 1025: ["a"]}},
    ):
        with pytest.raises(ValueError, match="too long"):
            Policy(**policy)


@each_case(
    ("text", "fault"),
    [
        ('footer_key = "file:f"\ncolumn_keys.pii = ["a"]', "ids of master keys throughout"),
        ('footer_key = "kf"\ncolumn_keys."env:K" = ["a"]', "ids of master keys throughout"),
        ('footer_key = "env:K"\nkms = "file:ring"', "need no key service: remove kms"),
        ('footer_key = "env:K"\ndouble_wrapping = false', "remove double_wrapping"),
    ],
)
def test_references_do_not_mix_with_master_keys(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Policy.loads(text)

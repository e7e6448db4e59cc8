"""AAD prefixes from paths: which file a prefix names, and where files may not share one."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import modcrypt as mc
from modcrypt.cli import app
from modcrypt.io.places import Place, place_of
from modcrypt.io.sources import open_source
from modcrypt.parquet.crypto.crypto_fields import stored_prefix
from modcrypt.parquet.crypto.path_prefix import PathPrefix, check_distinct
from modcrypt.parquet.format.framing import read_tail
from tests.support.keys import FOOTER_KEY

BASE = "part-00000-0f3c6c1e.c000.snappy.parquet"  # as Spark names files of one task, in any folder
TENANTS = {"acme": 10, "evil": 1_000_000}


@pytest.fixture
def tools(tmp_path: Path) -> mc.KeyTools:
    keyring = mc.Keyring.create(tmp_path / "k.keyring", plaintext=True)
    keyring.create_key("lake")
    return mc.KeyTools(f"file:{tmp_path}/k.keyring")


def policy(prefix: str | None, **more: object) -> mc.Policy:
    return mc.Policy(footer_key="lake", aad_prefix=prefix, **more)  # type: ignore[arg-type]


def table(limit: int = 1) -> pa.Table:
    return pa.table({"limit": [limit]})


def write_by_tenant(folder: Path, encryption: object) -> list[Path]:
    """Write a file of the same name for each tenant; return their paths."""
    paths = []
    for tenant, limit in TENANTS.items():
        path = folder / f"tenant={tenant}" / BASE
        path.parent.mkdir(parents=True)
        mc.write_table(table(limit), path, encryption)  # type: ignore[arg-type]
        paths.append(path)
    return paths


def swap(first: Path, second: Path) -> None:
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    spare.rename(second)


# --- which path ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "path", "inside"),
    [
        ("/lake", "/lake/a", "a"),
        ("/lake/", "/lake/x=1/a", "x=1/a"),
        ("/lake/./x/..", "/lake//x=1/../a", "a"),
        ("/", "/lake/a", "lake/a"),
        ("file:///lake%20s", "/lake s/a", "a"),
    ],
)
def test_the_path_is_relative_to_the_root(root: str, path: str, inside: str) -> None:
    assert PathPrefix(b"t/{path}", root).of(Place(None, path)) == f"t/{inside}".encode()


def test_relative_roots_and_files_mean_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = [place_of("lake/x/a"), place_of(tmp_path / "lake" / "x" / "a")]
    for root in ("lake", tmp_path / "lake", Path("lake"), (tmp_path / "lake").as_uri()):
        assert [PathPrefix(b"{path}", root).of(place) for place in places] == [b"x/a", b"x/a"]


def test_root_and_file_may_be_spelled_through_a_link_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "lake" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    (tmp_path / "lake" / "back").symlink_to(tmp_path / "lake")
    for root, where in (("link", "lake"), ("lake", "link")):
        prefix = PathPrefix(b"{path}", tmp_path / root)
        for inside in ("x/a", "back/x/a"):  # a link inside is a folder of its own
            assert prefix.of(Place(None, str(tmp_path / where / inside))) == inside.encode()
        for outside in ("a", "lakes/a", where):
            with pytest.raises(ValueError, match="is not inside root"):
                prefix.of(Place(None, str(tmp_path / outside)))


def test_a_url_of_the_root_means_the_same_in_every_thread(tools: mc.KeyTools) -> None:
    """fsspec has an instance of a store for each thread."""
    root = f"memory://{secrets.token_hex(8)}"
    data = pa.table({"tenant": list(TENANTS), "limit": list(TENANTS.values())})
    by_path = policy("people/{path}")
    names = mc.write_dataset(data, root, tools.encryption(by_path), partitioning=["tenant"])
    rooted = tools.decryption(by_path, root=root)
    for where in (root, [f"{root}/{name}" for name in names]):
        assert mc.read_table(where, rooted)["limit"].to_pylist() == list(TENANTS.values())
        assert mc.verify_dataset(where, rooted).ok
    rotated = mc.jobs.rotate_keys(root, tools, what="dek", decryption=rooted)
    assert [file.result for file in rotated] == ["rotated", "rotated"]
    other = fsspec.filesystem("memory", skip_instance_cache=True, other_store=True)
    with pytest.raises(ValueError, match="is not inside root"):
        mc.read_table(f"{root.removeprefix('memory:/')}/{names[0]}", rooted, filesystem=other)


@pytest.mark.parametrize("path", ["/lakes/a", "/a", "/lake/../a", "/lake"])
def test_files_outside_the_root_are_refused(path: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not inside root|the dataset of .* is unknown: pass root="
    ):
        PathPrefix(b"{path}", "/lake").of(Place(None, path))


def test_a_store_is_another_place_than_a_disk_and_keeps_empty_names() -> None:
    store = fsspec.filesystem("memory")
    for root in ("bucket/lake", "/bucket/lake/", "memory://bucket/lake"):
        prefix = PathPrefix(b"{path}", root)
        assert prefix.of(Place(store, "/bucket/lake/x=1/a")) == b"x=1/a"
        assert prefix.of(Place(store, "/bucket/lake//x=1/a")) == b"/x=1/a"
    with pytest.raises(ValueError, match="is not inside root"):
        PathPrefix(b"{path}", Place(None, "/bucket/lake")).of(Place(store, "/bucket/lake/a"))


def test_a_template_pickles() -> None:
    prefix = PathPrefix(b"{path}", "/lake")
    assert pickle.loads(pickle.dumps(prefix)) == prefix


def test_a_file_named_by_itself_needs_a_root(tmp_path: Path, tools: mc.KeyTools) -> None:
    path = tmp_path / "lake" / "x=1" / "a.parquet"
    path.parent.mkdir(parents=True)
    with pytest.raises(ValueError, match="pass root="):
        mc.write_table(table(), path, tools.encryption(policy("t/{path}")))
    root = tmp_path / "lake"
    mc.write_table(table(), path, tools.encryption(policy("t/{path}"), root=root))
    assert mc.inspect_parquet(path).aad_prefix == b"t/x=1/a.parquet"
    with pytest.raises(ValueError, match="pass root="):
        mc.read_table(path, tools.decryption(policy("t/{path}")))
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(path, tools.decryption(policy("t/{path}"), root=path.parent))
    with pytest.raises(ValueError, match="the AAD prefix depends"):
        mc.read_table(path.read_bytes(), tools.decryption(policy("t/{path}"), root=root))
    assert mc.read_table(path, tools.decryption(policy("t/{path}"), root=root)) == table()


# --- files that exchange places ------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_files_of_equal_names_cannot_swap_folders(
    tmp_path: Path, tools: mc.KeyTools, stored: bool
) -> None:
    by_path = policy("people/{path}", store_aad_prefix=stored)
    lake = tmp_path / "lake"
    one, other = write_by_tenant(lake, tools.encryption(by_path, root=lake))
    opening = tools.decryption(by_path)
    assert mc.read_table(lake, opening)["limit"].to_pylist() == list(TENANTS.values())
    assert mc.verify_dataset(lake, opening).ok
    assert [row.failed for row in mc.jobs.rotate_keys(lake, tools, decryption=opening)] == [
        False
    ] * 2
    swap(one, other)
    with pytest.raises(mc.ModcryptError):
        mc.read_table(lake, opening)
    with pytest.raises(mc.ModcryptError):
        mc.read_table(one, tools.decryption(by_path, root=lake))
    found = mc.verify_dataset(lake, opening)
    assert [file.ok for file in found.files] == [False, False]


def test_a_dataset_may_move_as_a_whole(tmp_path: Path, tools: mc.KeyTools) -> None:
    data = pa.table({"tenant": list(TENANTS), "limit": list(TENANTS.values())})
    lake, moved = tmp_path / "lake", tmp_path / "elsewhere"
    by_path = policy("people/{path}")
    encryption, opening = tools.encryption(by_path), tools.decryption(by_path)
    mc.write_dataset(data, lake, encryption, partitioning=["tenant"])
    os.rename(lake, moved)
    assert mc.read_table(moved, opening).select(["tenant", "limit"]) == data
    part = tools.decryption(policy("people/{path}"), root=moved)
    assert mc.read_table(moved / "tenant=evil", part)["limit"].to_pylist() == [1_000_000]
    with pytest.raises(mc.errors.AadPrefixError):
        mc.read_table(moved / "tenant=evil", opening)


def test_a_list_of_files_needs_a_root(tmp_path: Path, tools: mc.KeyTools) -> None:
    lake = tmp_path / "lake"
    paths = write_by_tenant(lake, tools.encryption(policy("{path}"), root=lake))
    with pytest.raises(ValueError, match="pass root="):
        mc.read_table(paths, tools.decryption(policy("{path}")))
    with pytest.raises(ValueError, match="pass root="):
        mc.verify_dataset(paths, tools.decryption(policy("{path}")))
    rooted = tools.decryption(policy("{path}"), root=lake)
    assert mc.read_table(paths, rooted).num_rows == 2
    assert mc.verify_dataset(paths, rooted).ok


def test_a_link_is_the_place_that_it_stands_for(tmp_path: Path, tools: mc.KeyTools) -> None:
    lake = tmp_path / "lake"
    one, other = write_by_tenant(lake, tools.encryption(policy("{path}"), root=lake))
    one.unlink()
    one.symlink_to(other)
    with pytest.raises(mc.ModcryptError):
        mc.read_table(lake, tools.decryption(policy("{path}")))


def test_paths_in_a_filesystem(tmp_path: Path, tools: mc.KeyTools) -> None:
    where = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    data = pa.table({"tenant": list(TENANTS), "limit": list(TENANTS.values())})
    encryption, opening = tools.encryption(policy("{path}")), tools.decryption(policy("{path}"))
    names = mc.write_dataset(data, "lake", encryption, partitioning=["tenant"], filesystem=where)
    assert mc.read_table("lake", opening, filesystem=where).num_rows == 2
    assert mc.read_table(tmp_path / "lake", opening).num_rows == 2  # the same paths inside
    one, other = (tmp_path / "lake" / name for name in names)
    swap(one, other)
    with pytest.raises(mc.ModcryptError):
        mc.read_table("lake", opening, filesystem=where)


# --- several files under one prefix --------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "paths", "shared"),
    [
        (None, ["a", "b"], False),
        (b"t", ["a"], False),
        (b"t", ["a", "b"], True),
        (PathPrefix(b"t"), ["a", "b"], True),
        (PathPrefix(b"{name}"), ["x/a", "x/b"], False),
        (PathPrefix(b"{name}"), ["x/a", "y/a"], True),
        (PathPrefix(b"{path}"), ["x/a", "y/a"], False),
    ],
)
def test_which_prefixes_are_shared(
    prefix: PathPrefix | bytes | None, paths: list[str], shared: bool
) -> None:
    if not shared:
        check_distinct(prefix, paths)
        return
    with pytest.raises(ValueError, match="would have the same AAD prefix"):
        check_distinct(prefix, paths)


@pytest.mark.parametrize("how", ["keys", "function", "policy"])
def test_write_dataset_refuses_a_second_file_under_a_prefix(
    tmp_path: Path, tools: mc.KeyTools, how: str
) -> None:
    data = pa.table({"tenant": list(TENANTS), "limit": list(TENANTS.values())})
    explicit = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"people")
    encryption = {
        "keys": explicit,
        "function": lambda path: explicit,
        "policy": tools.encryption(policy("people")),
    }[how]
    lake = tmp_path / "lake"
    with pytest.raises(ValueError, match="shared_aad_prefix=True"):
        mc.write_dataset(data, lake, encryption, partitioning=["tenant"])  # type: ignore[arg-type]
    assert [path for path in lake.rglob("*") if path.is_file()] == []
    names = mc.write_dataset(
        data,
        lake,
        encryption,  # type: ignore[arg-type]
        partitioning=["tenant"],
        shared_aad_prefix=True,
    )
    assert len(names) == 2


def test_verify_refuses_repeated_prefixes_where_one_is_required(
    tmp_path: Path, tools: mc.KeyTools
) -> None:
    lake = tmp_path / "lake"
    by_name = policy("people/{name}")
    write_by_tenant(lake, tools.encryption(by_name))
    required = tools.decryption(by_name)
    assert [found.word for found in mc.verify_dataset(lake, required).findings] == ["aad-prefix"]
    assert not mc.verify_dataset(lake, required).ok
    assert mc.verify_dataset(lake, required, shared_aad_prefix=True).ok
    free = mc.verify_dataset(lake, tools.decryption())
    assert free.ok
    assert [found.severity for found in free.findings] == ["warning"]


def test_verify_notices_repeated_prefixes_that_files_do_not_store(
    tmp_path: Path, tools: mc.KeyTools
) -> None:
    lake = tmp_path / "lake"
    by_name = policy("people/{name}", store_aad_prefix=False)
    write_by_tenant(lake, tools.encryption(by_name))
    assert not mc.verify_dataset(lake, tools.decryption(by_name)).ok


# --- the command line ----------------------------------------------------------------------------


def run(folder: Path, *arguments: str) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(app.program, arguments, catch_exceptions=False)


@pytest.fixture
def plain(tmp_path: Path, tools: mc.KeyTools) -> Path:
    """A folder with a plaintext file for each tenant, beside policies `{path}` and `{name}`."""
    for tenant, limit in TENANTS.items():
        (tmp_path / "plain" / f"tenant={tenant}").mkdir(parents=True)
        pq.write_table(table(limit), tmp_path / "plain" / f"tenant={tenant}" / BASE)
    for name in ("path", "name"):
        text = f'kms = "file:k.keyring"\nfooter_key = "lake"\naad_prefix = "t/{{{name}}}"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_a_folder_is_encrypted_and_verified_by_path(plain: Path) -> None:
    by_path = ("--policy", "path.toml")
    assert run(plain, "encrypt", *by_path, "plain", "lake").exit_code == 0
    assert run(plain, "verify", *by_path, "lake").exit_code == 0
    assert run(plain, "head", *by_path, "lake").exit_code == 0
    assert run(plain, "keys", "rotate", *by_path, "--what", "dek", "lake").exit_code == 0
    assert run(plain, "mask", *by_path, "--null", "limit", "--in-place", "lake").exit_code == 0
    part = ("lake/tenant=evil/" + BASE,)
    assert run(plain, "verify", *by_path, "--root", "lake", *part).exit_code == 0
    refused = run(plain, "verify", *by_path, *part)
    assert (refused.exit_code, "pass --root FOLDER" in refused.stderr) == (2, True)
    swap(*((plain / "lake" / f"tenant={tenant}" / BASE) for tenant in TENANTS))
    for command in ("verify", "cat"):
        assert run(plain, command, *by_path, "lake").exit_code == 1
    assert run(plain, "decrypt", *by_path, "lake", "out").exit_code == 1


@pytest.mark.parametrize("how", ["policy", "keys"])
def test_a_folder_under_one_prefix_is_refused_unless_asked_for(plain: Path, how: str) -> None:
    (plain / "footer.key").write_bytes(FOOTER_KEY)
    (plain / "footer.key").chmod(0o600)
    explicit = ("--key", "file:footer.key", "--aad-prefix", "people")
    options = {"policy": ("--policy", "name.toml"), "keys": explicit}[how]
    refused = run(plain, "encrypt", *options, "plain", "lake")
    assert (refused.exit_code, "--shared-aad-prefix" in refused.stderr) == (2, True)
    assert not (plain / "lake").exists()
    shared = "--shared-aad-prefix"
    assert run(plain, "encrypt", *options, shared, "plain", "lake").exit_code == 0
    assert run(plain, "verify", *options, "lake").exit_code == 1
    assert run(plain, "verify", *options, shared, "lake").exit_code == 0
    (plain / "keys.toml").write_text('footer_key = "file:footer.key"\naad_prefix = "people"\n')
    new = ("--to", {"policy": "name.toml", "keys": "keys.toml"}[how])
    again = run(plain, "rekey", *options, *new, "lake", "next")
    assert (again.exit_code, 'use "{path}" in its aad_prefix' in again.stderr) == (2, True)


@pytest.mark.parametrize("plaintext_footer", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_only_encrypted_files_may_store_a_prefix(
    tmp_path: Path, plaintext_footer: bool, stored: bool
) -> None:
    encrypted, plain = tmp_path / "encrypted.parquet", tmp_path / "plain.parquet"
    properties = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, aad_prefix=b"prefix", store_aad_prefix=stored,
        plaintext_footer=plaintext_footer,
    )  # fmt: skip
    mc.write_table(table(), encrypted, properties)
    with open_source(encrypted) as source:
        assert stored_prefix(read_tail(source), "f") == (b"prefix" if stored else None)
    pq.write_table(table(), plain)
    with (
        open_source(plain) as source,
        pytest.raises(mc.errors.PlaintextError, match="f is a plaintext"),
    ):
        stored_prefix(read_tail(source), "f")

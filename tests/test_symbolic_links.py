"""Nothing is written or removed through a symbolic link below a folder that the caller named."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import modcrypt as mc
from modcrypt.cli import app
from modcrypt.io.destinations import open_sink, open_sink_at
from modcrypt.io.places import Place
from modcrypt.jobs.shredding.removal import shred_keys
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.kms.rotating_kms import RotatingKms
from tests.support.tables import small_table, write_plain

ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
TABLE = small_table(20)
PARTITIONED = pa.table({"p": ["a", "b", "b"], "v": [1, 2, 3]})
WITHIN = mc.Policy(footer_key="kf", column_keys={"kc": ["name"]})
BESIDE = mc.Policy(footer_key="kf", column_keys={"kc": ["name"]}, internal_key_material=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def outside_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "part-0.parquet").write_bytes(b"precious")
    return folder


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder that is reached by a link of the caller's own, as /tmp on macOS."""
    (tmp_path / "disk" / "lake").mkdir(parents=True)
    (tmp_path / "mounted").symlink_to("disk")
    return tmp_path / "mounted" / "lake"


# --- places --------------------------------------------------------------------------------------


def write(place: Place) -> None:
    with open_sink_at(place) as sink:
        sink.append(b"new")


CHANGES: dict[str, Callable[[Place], object]] = {
    "create": write,
    "make_folder": Place.make_folder,
    "remove": Place.remove,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("inside", ["link/part-0.parquet", "a/link/b/part-0.parquet"])
def test_a_link_above_a_file_is_not_followed(
    inside: str, change: Callable[[Place], object], lake: Path, outside_folder: Path
) -> None:
    (lake / "a").mkdir()
    (outside_folder / "b").mkdir()
    for where in (lake, lake / "a"):
        (where / "link").symlink_to(outside_folder)
    before = contents(outside_folder)
    with pytest.raises(OSError, match="symbolic link below") as caught:
        change(Place(None, str(lake)).below(inside))
    assert caught.value.errno == errno.ELOOP
    assert contents(outside_folder) == before


@each_case("inside", ["../../outside/part-0.parquet", "a/../../x", "..", ""])
@each_case("change", [write, Place.remove])
def test_a_path_does_not_leave_its_root(
    inside: str, change: Callable[[Place], object], lake: Path, outside_folder: Path
) -> None:
    before = contents(outside_folder)
    with pytest.raises(OSError, match="not below"):
        change(Place(None, str(lake)).below(inside))
    assert contents(outside_folder) == before


def test_a_link_in_the_place_of_a_file_is_removed_itself_and_not_replaced(
    lake: Path, outside_folder: Path
) -> None:
    link = lake / "part-0.parquet"
    link.symlink_to(outside_folder / "part-0.parquet")
    place = Place(None, str(lake)).below(link.name)
    with pytest.raises(OSError, match="symbolic link below"):
        write(place)
    assert link.is_symlink()
    place.remove()
    assert not link.is_symlink()
    assert contents(outside_folder) == {"part-0.parquet": b"precious"}


@pytest.mark.parametrize("root", ["", ".", "lake", "lake/", "{}/lake"])
def test_a_root_may_be_spelt_in_many_ways(
    root: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake.parent if "lake" in root else lake)
    place = Place(None, root.format(lake.parent)).below("a/b/file")
    place.make_folder()
    write(place)
    assert (lake / "a" / "b" / "file").read_bytes() == b"new"
    with open_sink(place, overwrite=True) as sink:
        sink.append(b"newer")
    with pytest.raises(FileExistsError), open_sink_at(place, overwrite=False):
        pass
    assert (lake / "a" / "b" / "file").read_bytes() == b"newer"
    assert not place.is_linked
    place.remove()
    place.remove()
    assert os.listdir(lake / "a" / "b") == []


def test_a_folder_that_a_link_replaces_meanwhile_is_not_written(
    lake: Path, outside_folder: Path
) -> None:
    (lake / "p").mkdir()

    def write_slowly() -> None:
        with open_sink_at(Place(None, str(lake)).below("p/part-0.parquet")) as sink:
            sink.append(b"new")
            (lake / "p").rename(lake / "moved")
            (lake / "p").symlink_to(outside_folder)

    with pytest.raises(OSError, match="symbolic link below"):
        write_slowly()
    assert contents(outside_folder) == {"part-0.parquet": b"precious"}
    assert not (lake / "moved" / "part-0.parquet").exists()


@pytest.mark.parametrize("change", [write, Place.remove])
def test_a_link_that_appears_in_the_last_moment_is_not_followed(
    change: Callable[[Place], object],
    lake: Path,
    outside_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at a folder and what is done in it."""
    (lake / "p").mkdir()
    (lake / "p" / "part-0.parquet").write_bytes(b"old")

    def swapping(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def swap(*arguments: Any, **more: Any) -> Any:
            if not (lake / "p").is_symlink():
                (lake / "p").rename(lake / "moved")
                (lake / "p").symlink_to(outside_folder)
            return real(*arguments, **more)

        return swap

    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, swapping(name))
    change(Place(None, str(lake)).below("p/part-0.parquet"))
    assert contents(outside_folder) == {"part-0.parquet": b"precious"}
    assert contents(lake / "moved") == ({"part-0.parquet": b"new"} if change is write else {})


# --- datasets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_dataset_is_not_written_through_a_linked_partition(
    fails: bool, lake: Path, outside_folder: Path
) -> None:
    (lake / "p=b").symlink_to(outside_folder)

    def encryption(path: str) -> mc.FileEncryptionProperties:
        if fails and "p=b" in path:  # another error than the link's: what is there is removed
            raise ZeroDivisionError
        return ENCRYPTION

    with pytest.raises(ZeroDivisionError if fails else OSError):
        mc.write_dataset(
            PARTITIONED, lake, encryption, partitioning=["p"], basename_template="part-{i}.parquet",
            existing_data_behavior="overwrite_or_ignore",
        )  # fmt: skip
    assert contents(outside_folder) == {"part-0.parquet": b"precious"}
    assert contents(lake) == {}


def test_a_dataset_is_written_below_a_link_of_the_callers_own(lake: Path) -> None:
    paths = mc.write_dataset(PARTITIONED, lake, ENCRYPTION, partitioning=["p"])
    assert sorted(contents(lake)) == sorted(paths)


@pytest.mark.parametrize("there", [True, False])
def test_key_material_is_not_written_through_a_link(
    there: bool, lake: Path, outside_folder: Path
) -> None:
    """The caller names a file, and not that."""
    victim = outside_folder / "material.json"
    if there:
        victim.write_text("{}")
    (lake / "_KEY_MATERIAL_FOR_a.parquet.json").symlink_to(victim)
    before = contents(outside_folder)
    with pytest.raises(OSError, match="symbolic link below"):
        mc.write_table(
            TABLE, lake / "a.parquet", mc.KeyTools(RotatingKms(kf=1, kc=1)).encryption(BESIDE)
        )
    assert contents(outside_folder) == before
    assert not (lake / "a.parquet").exists()


# --- rotations and shredding ---------------------------------------------------------------------


def write_linked_lake(
    lake: Path, outside_folder: Path, kms: RotatingKms, policy: mc.Policy
) -> list[Path]:
    """Write a file into a lake, and two that links in it lead to."""
    paths = [lake / "a.parquet", outside_folder / "b.parquet", outside_folder / "c" / "c.parquet"]
    paths[2].parent.mkdir()
    for path in paths:
        mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(policy))
    (lake / "0-link.parquet").symlink_to(paths[1])
    (lake / "c").symlink_to(outside_folder / "c")
    return paths


def rotate(kms: RotatingKms, where: Any, what: Any) -> list[mc.jobs.RotatedFile]:
    kms.rotate()
    return mc.jobs.rotate_keys(where, mc.KeyTools(kms), what=what)


def shred(kms: RotatingKms, where: Any, _what: Any) -> Any:
    return shred_keys(where, mc.KeyTools(kms), columns=["name"])


@each_case("policy", [WITHIN, BESIDE], ids=["within", "beside"])
@each_case(
    ("change", "what", "done"),
    [
        (rotate, "mek", "rotated"), (rotate, "kek", "rotated"), (rotate, "dek", "rotated"),
        (shred, "", "shredded"),
    ],
    ids=["mek", "kek", "dek", "shred"],
)  # fmt: skip
def test_files_behind_links_in_a_folder_fail_and_stay_as_they_are(
    change: Any, what: Any, done: str, policy: mc.Policy, lake: Path, outside_folder: Path
) -> None:
    kms = RotatingKms(kf=1, kc=1)
    paths = write_linked_lake(lake, outside_folder, kms, policy)
    before = contents(outside_folder)
    found = {Path(file.path).name: file for file in change(kms, lake, what)}
    assert {name: file.result for name, file in found.items()} == {
        "0-link.parquet": "file", "a.parquet": done, "c.parquet": "file",
    }  # fmt: skip
    assert "symbolic link below" in found["c.parquet"].message
    assert contents(outside_folder) == before
    # Named themselves they are written; then the links in the folder are nothing more to do.
    again = change(kms, [lake, *paths[1:]], what)
    assert [file for file in again if file.failed] == []
    assert contents(outside_folder) != before


@each_case("how", [{"everything": True}, {"columns": ["name"]}, {"master_keys": ["kc"]}])
@each_case("named", ["", "a.parquet"])
def test_key_material_behind_a_link_does_not_count_as_shredded(
    how: dict[str, Any], named: str, lake: Path, outside_folder: Path
) -> None:
    """With the file that the link leads to, the data stays readable."""
    tools = mc.KeyTools(RotatingKms(kf=1, kc=1))
    mc.write_table(TABLE, lake / "a.parquet", tools.encryption(BESIDE))
    material = lake / "_KEY_MATERIAL_FOR_a.parquet.json"
    moved = material.rename(outside_folder / "moved.json")
    material.symlink_to(moved)
    before = contents(outside_folder)
    (found,) = shred_keys(lake / named, tools, **how)
    assert (found.result, "symbolic link below" in found.message) == ("file", True)
    assert contents(outside_folder) == before
    assert material.is_symlink()


def test_a_link_to_a_file_of_the_same_folder_is_that_file(lake: Path) -> None:
    kms = RotatingKms(kf=1, kc=1)
    mc.write_table(TABLE, lake / "b.parquet", mc.KeyTools(kms).encryption(WITHIN))
    (lake / "a.parquet").symlink_to("b.parquet")
    assert [file.result for file in rotate(kms, lake, "mek")] == ["rotated"]


# --- the command line ----------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app.program, arguments)


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "footer.key"
    path.write_text(FOOTER_KEY.hex())
    path.chmod(0o600)
    return str(path)


def test_files_behind_links_are_not_replaced_in_place(
    lake: Path, outside_folder: Path, key: str
) -> None:
    write_plain(lake / "a.parquet")
    write_plain(outside_folder / "b.parquet")
    (lake / "b.parquet").symlink_to(outside_folder / "b.parquet")
    (lake / "c").symlink_to(outside_folder)
    (outside_folder / "part-0.parquet").unlink()
    before = contents(outside_folder)
    found = run("encrypt", "--key", f"file:{key}", "--in-place", str(lake))
    assert found.exit_code == 74  # a file error
    assert "symbolic link below" in found.output
    assert contents(outside_folder) == before
    assert (lake / "a.parquet").read_bytes()[:4] == b"PARE"
    assert (
        run("encrypt", "--key", f"file:{key}", "--in-place", str(lake / "b.parquet")).exit_code == 0
    )
    assert (outside_folder / "b.parquet").read_bytes()[:4] == b"PARE"
    assert (lake / "b.parquet").is_symlink()


def test_a_destination_folder_is_not_written_through_a_link(
    tmp_path: Path, lake: Path, outside_folder: Path, key: str
) -> None:
    source = tmp_path / "source"
    (source / "p=1").mkdir(parents=True)
    write_plain(source / "p=1" / "part-0.parquet")
    write_plain(source / "b.parquet")
    (lake / "p=1").symlink_to(outside_folder)
    (lake / "b.parquet").symlink_to(outside_folder / "part-0.parquet")
    found = run("encrypt", "--key", f"file:{key}", "--force", str(source), str(lake))
    assert found.exit_code == 74  # a file error
    assert "2 failed" in found.output
    assert contents(outside_folder) == {"part-0.parquet": b"precious"}

"""Manifests in which keys are sealed anew elsewhere: by other processes, from pickles."""

from __future__ import annotations

from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.iceberg import KeyPolicy, open_table, rotate_table, verify_table
from modcrypt.keys import key_bytes
from tests.support.folder_contents import files
from tests.support.iceberg.elsewhere import Elsewhere
from tests.support.iceberg.partitioned_table import two_appends
from tests.support.iceberg.resealed_tables import file_keys
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.secret_watch import spellings

POLICIES = [
    KeyPolicy(wrapping="single", kek_per="files"),
    KeyPolicy(kek_per="partition"),
    KeyPolicy(kek_per="files", files=1),
]


@pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda policy: f"{policy.wrapping}-{policy.kek_per}"
)
def test_another_process_may_do_the_work_and_no_key_is_in_what_it_is_sent(
    tmp_path: Path, policy: KeyPolicy
) -> None:
    table = two_appends(tmp_path / "t", policy)
    rows, before, old = table.scan(), files(tmp_path), file_keys(table)
    elsewhere = Elsewhere(twice=True)
    planned = rotate_table(table, "kek", new_master_key_id="keyB", dry_run=True)
    done = rotate_table(table, "kek", new_master_key_id="keyB", rewrap=elsewhere)
    assert (done.manifests, done.manifest_lists) == (2, 2)
    assert (planned.manifests, planned.manifest_lists) == (2, 2)
    # Two manifests, two lists, a metadata.json: nothing is left of what was done twice.
    assert len(files(tmp_path).keys() - before.keys()) == 5
    table = open_table(tmp_path / "t", SampleKms(), master_key_ids=["keyB"])
    assert table.scan() == rows
    assert verify_table(table).ok
    new = file_keys(table)
    assert {name: plain for name, (_, plain) in new.items()} == {
        name: plain for name, (_, plain) in old.items()
    }
    assert {sealed for sealed, _ in new.values()}.isdisjoint(sealed for sealed, _ in old.values())
    keks = table.walk.resolver.keks(table.metadata).values()
    secrets = [key_bytes(key) for kek in keks if (key := table.walk.resolver.open_key(kek)._kek)]
    plains = [mc.ags1.StandardKeyMetadata.decode(plain) for _, plain in new.values()]
    secrets += [key_bytes(metadata.key) for metadata in plains]
    for sent in elsewhere.sent:
        assert not [
            secret for secret in secrets for spelling in spellings(secret) if spelling in sent
        ]


@pytest.mark.parametrize("policy", POLICIES[:2], ids=lambda policy: policy.wrapping)
def test_work_that_is_not_whole_is_refused_and_removed(tmp_path: Path, policy: KeyPolicy) -> None:
    table = two_appends(tmp_path / "t", policy)
    before = files(tmp_path)
    with pytest.raises(mc.errors.IntegrityError, match="exactly"):
        rotate_table(table, "kek", rewrap=Elsewhere(forget=True, twice=True))
    with pytest.raises(ValueError, match="only for"):
        rotate_table(table, "dek", rewrap=Elsewhere())
    assert files(tmp_path) == before


def test_a_manifest_that_was_altered_is_not_sealed_anew(tmp_path: Path) -> None:
    table = two_appends(tmp_path / "t", POLICIES[0])
    manifest = next(path for path in (tmp_path / "t/metadata").glob("*-m0.avro"))
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.write_bytes(data)
    before = files(tmp_path)
    with pytest.raises(mc.errors.IntegrityError):
        rotate_table(table, "kek")
    assert files(tmp_path) == before

"""Recipients that a declaration names open the files, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, make_lake
from tests.support.recipients import identity

ME, YOU = identity(), identity("you")


def declare(config: Path, text: str) -> None:
    config.write_text(DECLARATION.replace('include = "*.parquet"\n', f"{text}\n"))


def counts(config: Path) -> dict[str, int]:
    (status,) = Lake.open(config).status()
    return status.counts


def test_apply_encrypts_to_declared_recipients(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    (tmp_path / "me.pub").write_text(f"{ME.recipient}\n")
    declare(config, 'recipients = ["me.pub"]')
    Lake.open(config).apply()
    assert counts(config) == {"declared": 2}
    (file, _) = sorted((tmp_path / "orders").rglob("*.parquet"))
    decryption = mc.FileDecryptionProperties(key_retriever=ME)
    assert mc.read_table(file, decryption, partitioning=None).num_rows == 2
    declare(config, f'recipients = ["me.pub", "{YOU.recipient}"]')
    assert "declared" not in counts(config)
    Lake.open(config).apply()
    assert counts(config) == {"declared": 2}
    (listed, _) = mc.jobs.list_recipients(tmp_path / "orders")
    assert [found.id for found in listed.recipients] == [
        ME.recipient.hex_id,
        YOU.recipient.hex_id,
    ]


@each_case(
    "given, part",
    [
        ('"me.pub"', "must be a list"),
        ("[1]", "must be a list"),
        ('["none.pub"]', "No such file"),
        ('["modcrypt-recipient:x25519:AAAA:0"]', "not a recipient"),
        ('["lake.keyring"]', "not a recipient"),
    ],
)
def test_mistakes_are_reported(given: str, part: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    declare(config, f"recipients = {given}")
    with pytest.raises(ValueError, match=part):
        Lake.open(config)

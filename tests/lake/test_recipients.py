"""Recipients that a declaration names open the files, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, make_lake, order_table
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


# --- former recipients ---------------------------------------------------------------------------


def opens(file: Path, who: Any) -> bool:
    try:
        mc.read_table(file, mc.FileDecryptionProperties(key_retriever=who), partitioning=None)
    except mc.errors.KeyRetrievalError:
        return False
    return True


def data_keys(config: Path) -> list[bytes]:
    return [file.data_keys for file in Lake.open(config).status()[0].files]


def test_the_access_of_a_recipient_ends(tmp_path: Path) -> None:
    """New data keys are made: the recipient may have kept the old ones."""
    config = make_lake(tmp_path, days=1)
    declare(config, f'recipients = ["{ME.recipient}", "{YOU.recipient}"]')
    Lake.open(config).apply()
    before = data_keys(config)
    declare(config, f'recipients = ["{ME.recipient}"]\nformer_recipients = ["{YOU.recipient}"]')
    (status,) = Lake.open(config).status()
    assert status.counts == {"former-recipient": 2}
    assert YOU.recipient.hex_id in status.files[0].message
    assert not status.is_declared
    (verified,) = Lake.open(config).verify()
    assert "former-recipient" in {fault.word for fault in verified.faults}
    (done,) = Lake.open(config).apply()
    assert ({file.result for file in done.files}, done.code) == ({"renewed"}, 0)
    assert not set(before) & set(data_keys(config))
    assert Lake.open(config).status()[0].is_declared
    assert Lake.open(config).verify()[0].code == 0
    file = next((tmp_path / "orders").rglob("*.parquet"))
    assert (opens(file, ME), opens(file, YOU)) == (True, False)
    (impact,) = Lake.open(config).impact(f"recipient:{YOU.recipient.hex_id}")
    assert (impact.files, impact.rewrapped) == (0, 0)
    Lake.open(config).dataset("orders").write(order_table().append_column("day", [["1"] * 2]))
    assert Lake.open(config).status()[0].is_declared


@each_case("knows", [True, False])
def test_removing_a_recipient_from_files_ends_nothing(tmp_path: Path, knows: bool) -> None:
    """The data keys stay the same, so whoever opened the file still reads it."""
    config = make_lake(tmp_path, days=1)
    both = f'recipients = ["{ME.recipient}", "{YOU.recipient}"]'
    declare(config, both)
    Lake.open(config).apply()
    if knows:
        assert counts(config) == {"declared": 2}
    me = mc.FileDecryptionProperties(key_retriever=ME)
    mc.jobs.remove_recipients(tmp_path / "orders", [YOU.recipient.id], me)
    rest = f'recipients = ["{ME.recipient}"]'
    declare(config, rest)
    assert counts(config) == {"declared": 2}
    declare(config, f'{rest}\nformer_recipients = ["{YOU.recipient}"]')
    before = data_keys(config)
    assert counts(config) == {"former-recipient": 2}
    (done,) = Lake.open(config).apply()
    assert {file.result for file in done.files} == {"renewed"}
    assert counts(config) == {"declared": 2}
    assert not set(before) & set(data_keys(config))
    assert Lake.open(config).apply()[0].changed == 0


def test_nobody_is_a_recipient_and_a_former_one(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    declare(config, f'recipients = ["{ME.recipient}"]\nformer_recipients = ["{ME.recipient}"]')
    with pytest.raises(ValueError, match="is in recipients, too"):
        Lake.open(config)


def test_impact_of_a_recipient(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    declare(config, f'recipients = ["{ME.recipient}"]')
    Lake.open(config).apply()
    (impact,) = Lake.open(config).impact(f"recipient:{ME.recipient.hex_id}")
    assert (impact.files, impact.footers) == (2, 2)


@each_case("key", ["footer", "pii"])
def test_what_recipients_open_is_not_erased(tmp_path: Path, key: str) -> None:
    """The master key is destroyed, but an identity opens the files without it."""
    config = make_lake(tmp_path, days=1)
    declare(config, f'recipients = ["{ME.recipient}"]')
    Lake.open(config).apply()
    what = 'files = ["day=2026-11-01"]' if key == "footer" else 'columns = ["home_ssn", "mail"]'
    statement = f'\n[[dataset.orders.erased]]\n{what}\nwhen = "2026-11-29"\n'
    config.write_text(config.read_text() + statement)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    for each in ("footer", "pii") if key == "footer" else ("pii",):
        keyring.destroy_key(each)
    assert counts(config) == {"not-erased": 2}
    assert Lake.open(config).verify()[0].code == 1
    with pytest.raises(mc.errors.KeyRetrievalError):
        Lake.open(config).dataset("orders").read()
    assert opens(next((tmp_path / "orders").rglob("*.parquet")), ME)

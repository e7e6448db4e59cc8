"""Recipients that are listed, added and removed, without a change of a page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt import KeyTools, Policy
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MemoryKms
from tests.support.recipients import TABLE, explicit_key, identity, open_with, read_with, write_for

ME, YOU = identity(), identity("you", "mlkem768-x25519")
LATER = identity("later")
POLICY = Policy(footer_key="kf", column_keys={"kc1": ["name"]}, plaintext_columns=["day"])


def pages_of(data: bytes) -> bytes:
    return data[: -8 - int.from_bytes(data[-8:-4], "little")]


def ids_of(path: Path) -> list[str]:
    (listed,) = mc.jobs.list_recipients(path)
    assert not listed.failed
    return [recipient.id for recipient in listed.recipients]


@pytest.fixture(params=[False, True], ids=["encrypted footer", "plaintext footer"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file.parquet"
    path.write_bytes(write_for(ME, YOU, options={"plaintext_footer": request.param}))
    return path


def test_recipients_are_added_without_touching_a_page(path: Path) -> None:
    before = path.read_bytes()
    (file,) = mc.jobs.add_recipients(path, [LATER.recipient, ME.recipient], open_with(ME))
    assert (file.result, file.recipients, file.failed) == ("changed", 3, False)
    after = path.read_bytes()
    assert pages_of(after) == pages_of(before)
    assert explicit_key(after, LATER) == explicit_key(before, ME)
    for someone in (ME, YOU, LATER):
        assert read_with(after, someone) == TABLE
    assert ids_of(path) == [i.recipient.hex_id for i in (ME, YOU, LATER)]
    (file,) = mc.jobs.add_recipients(path, [LATER.recipient], open_with(YOU))
    assert file.result == "current"
    assert path.read_bytes() == after


def test_recipients_are_removed_without_touching_a_page(path: Path) -> None:
    before = path.read_bytes()
    (file,) = mc.jobs.remove_recipients(path, [YOU.recipient.id], open_with(ME))
    assert (file.result, file.recipients) == ("changed", 1)
    after = path.read_bytes()
    assert pages_of(after) == pages_of(before)
    assert read_with(after, ME) == TABLE
    with pytest.raises(mc.errors.KeyNotFoundError):
        read_with(after, YOU)
    # What the documentation warns of: the data key is still the same.
    kept = mc.FileDecryptionProperties(footer_key=explicit_key(before, YOU))
    assert mc.read_table(io.BytesIO(after), kept) == TABLE
    (file,) = mc.jobs.remove_recipients(path, [YOU.recipient.id], open_with(ME))
    assert file.result == "current"


def test_a_removal_with_new_recipients_replaces_the_data_key(path: Path) -> None:
    kept = explicit_key(path.read_bytes(), YOU)
    (file,) = mc.jobs.remove_recipients(
        path, [YOU.recipient.id], open_with(ME), new_recipients=[ME.recipient]
    )
    assert (file.result, file.recipients) == ("rotated", 1)
    assert read_with(path.read_bytes(), ME) == TABLE
    with pytest.raises(mc.ModcryptError):
        mc.read_table(path, mc.FileDecryptionProperties(footer_key=kept))
    assert ids_of(path) == [ME.recipient.hex_id]


def test_new_recipients_must_be_those_that_remain(path: Path) -> None:
    before = path.read_bytes()
    for given in ([YOU.recipient], [ME.recipient, LATER.recipient], [LATER.recipient]):
        (file,) = mc.jobs.remove_recipients(
            path, [YOU.recipient.id], open_with(ME), new_recipients=given
        )
        assert file.result == "key-material"
        assert "exactly those that remain" in file.message
    assert path.read_bytes() == before


def test_somebody_must_remain(path: Path) -> None:
    before = path.read_bytes()
    (file,) = mc.jobs.remove_recipients(path, [ME.recipient.id, YOU.recipient.id], open_with(ME))
    assert file.failed
    assert "nobody could open" in file.message
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="no recipients to remove"):
        mc.jobs.remove_recipients(path, [], open_with(ME))


def test_a_scan_names_files_for_recipients(path: Path) -> None:
    (key, *_) = mc.jobs.scan_keys(path)
    assert (key.kind, key.storage, key.master_key_id) == ("footer", "recipients", None)


def test_strangers_change_nothing(path: Path) -> None:
    before = path.read_bytes()
    stranger = open_with(LATER)
    for (file,) in (
        mc.jobs.add_recipients(path, [LATER.recipient], stranger),
        mc.jobs.remove_recipients(path, [YOU.recipient.id], stranger),
    ):
        assert file.result == "no-key"
    assert path.read_bytes() == before


def test_a_forged_footer_is_never_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    data = bytearray(write_for(ME, options={"plaintext_footer": True}))
    length = int.from_bytes(data[-8:-4], "little")
    at = data.index(b"name", len(data) - 8 - length)  # of the schema, before any random byte
    data[at] ^= 1
    path.write_bytes(data)
    waived = open_with(ME, check_footer_integrity=False)
    (file,) = mc.jobs.add_recipients(path, [YOU.recipient], waived)
    assert file.result in ("signature", "format")
    assert path.read_bytes() == bytes(data)


# --- beside a key service -------------------------------------------------------------------------


def write_by_policy(path: Path, kms: MemoryKms, policy: Policy = POLICY, **more: Any) -> bytes:
    mc.write_table(TABLE, path, KeyTools(kms).encryption(policy, **more))
    return path.read_bytes()


@each_case("plaintext_footer", [False, True])
def test_files_of_a_key_service_get_recipients(plaintext_footer: bool, tmp_path: Path) -> None:
    kms, path = MemoryKms(), tmp_path / "file.parquet"
    policy = Policy(
        footer_key="kf", column_keys={"kc1": ["name"]}, plaintext_footer=plaintext_footer
    )
    before, tools = write_by_policy(path, kms, policy), KeyTools(kms)
    (file,) = mc.jobs.add_recipients(path, [ME.recipient, YOU.recipient], tools.decryption(policy))
    assert (file.result, file.recipients) == ("changed", 2)
    after = path.read_bytes()
    assert pages_of(after) == pages_of(before)
    assert read_with(after, YOU) == TABLE
    assert mc.read_table(path, tools.decryption(policy)) == TABLE
    (listed,) = mc.jobs.list_recipients(path)
    assert listed.master_key_id == "kf"
    # Without an identity, the file's KEK is unknown.
    (file,) = mc.jobs.add_recipients(path, [LATER.recipient], tools.decryption(policy))
    assert file.result == "no-key"
    assert "rekey" in file.message
    ids = [ME.recipient.id, YOU.recipient.id]
    (file,) = mc.jobs.remove_recipients(path, ids, tools.decryption(policy))
    assert (file.result, file.recipients) == ("changed", 0)
    assert ids_of(path) == []
    assert mc.read_table(path, tools.decryption(policy)) == TABLE
    with pytest.raises(mc.errors.KeyNotFoundError):
        read_with(path.read_bytes(), ME)


def test_rotations_of_wrapped_keys_keep_recipients(tmp_path: Path) -> None:
    kms, path = MemoryKms(rewrap=True), tmp_path / "file.parquet"
    write_by_policy(path, kms, recipients=[ME.recipient])
    tools = KeyTools(kms)
    for what in ("mek", "kek"):
        mc.jobs.rotate_keys(path, tools, what=what, new_master_keys={"kc1": "kc2"})
        assert read_with(path.read_bytes(), ME) == TABLE
    before = path.read_bytes()
    (rotated,) = mc.jobs.rotate_keys(path, tools, what="dek")
    assert rotated.failed
    assert "has recipients" in rotated.message
    assert path.read_bytes() == before


def test_a_lost_master_key_proves_nothing_while_recipients_open_the_file(tmp_path: Path) -> None:
    kms, path = MemoryKms(), tmp_path / "file.parquet"
    policy = Policy(footer_key="kf", column_keys={"kc1": ["name"]})
    write_by_policy(path, kms, policy, recipients=[ME.recipient])
    tools = KeyTools(kms)
    kms.disabled |= {"kf", "kc1"}
    proof = mc.jobs.prove_shredded(path, tools, everything=True)
    assert any("recipients open it" in key.why for _, key in proof.still_readable)
    kms.disabled.clear()
    tools.wrapper.forget()  # a cache remembers refusals
    (file,) = mc.jobs.remove_recipients(path, [ME.recipient.id], tools.decryption(policy))
    assert file.result == "changed"
    kms.disabled |= {"kf", "kc1"}
    tools.wrapper.forget()
    assert not mc.jobs.prove_shredded(path, tools, everything=True).still_readable


def test_files_with_explicit_keys_are_encrypted_again_instead(tmp_path: Path) -> None:
    path, key = tmp_path / "file.parquet", b"0123456789012345"
    mc.write_table(TABLE, path, mc.FileEncryptionProperties(footer_key=key))
    properties = mc.FileDecryptionProperties(footer_key=key)
    (file,) = mc.jobs.add_recipients(path, [ME.recipient], properties)
    assert file.result == "key-material"
    assert "rekey" in file.message


def test_folders_are_listed_and_changed_with_their_failures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(write_for(ME))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nothing")
    listed = list(mc.jobs.list_recipients(tmp_path))
    assert [file.failed for file in listed] == [False, False, True]
    seen: list[tuple[str, int]] = []
    changed = mc.jobs.add_recipients(
        tmp_path, [YOU.recipient], open_with(ME),
        progress=lambda file, total: seen.append((file.result, total)),
    )  # fmt: skip
    assert [file.result for file in changed] == ["changed", "changed", "format"]
    assert seen == [("changed", 3), ("changed", 3), ("format", 3)]
    members = {"file", "result", "message", "recipients", "lost_signature"}
    assert changed[0].fields().keys() == members


def test_repeated_encryption_compares_recipients(tmp_path: Path) -> None:
    from modcrypt.io.places import place_of
    from modcrypt.jobs.idempotence.key_comparison import NewKeys

    kms, path = MemoryKms(), tmp_path / "file.parquet"
    write_by_policy(path, kms, recipients=[ME.recipient])
    place, tools = place_of(path), KeyTools(kms)
    assert place is not None
    same = NewKeys(tools.encryption(POLICY, recipients=[ME.recipient]))
    assert same.find_difference(place) is None
    for recipients in ([], [YOU.recipient], [ME.recipient, YOU.recipient]):
        other = NewKeys(tools.encryption(POLICY, recipients=recipients))
        difference = other.find_difference(place)
        assert difference is not None
        assert "other recipients" in difference.why

"""Files of secrets that another user chose, or may change, are not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt import Keyring
from modcrypt.errors import KeyRetrievalError
from modcrypt.io.private_files import check_unalterable, only_root_can_write
from modcrypt.kms.key_references import read_key, read_metadata_file
from modcrypt.kms.keyring.keyring_passphrase import make_reference_asker

SECRET = "00112233445566778899aabbccddeeff"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a secret that is a valid passphrase, token, PIN and key."""
    Keyring.create(tmp_path / "k", passphrase=SECRET).create_key("kf")
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET + "\n")
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "passphrase": lambda path: mc.kms.open_kms(f"file:{path.parent}/k?passphrase=file:{path}"),
    "passphrase option": lambda path: make_reference_asker(f"file:{path}", "file:k")(),
    "token": lambda path: mc.kms.open_kms(f"hcvault://127.0.0.1:9/t?tls=off&token=file:{path}"),
    "PIN": lambda path: _pin(path),
    "key": lambda path: read_key(f"file:{path}", "footer key"),
    "key of a program": mc.Key.from_file,
    "key metadata": lambda path: read_metadata_file(str(path)),
}


def _pin(path: Path) -> str:
    pkcs11 = pytest.importorskip("modcrypt.kms.services.pkcs11_token")
    pin: str = pkcs11.make_pin_source(None, f"file:{path}")()
    return pin


@pytest.mark.parametrize("name", READERS)
def test_a_secret_that_others_may_write_is_refused(file: Path, name: str) -> None:
    if name.startswith("key metadata"):
        file.write_bytes(mc.ags1.StandardKeyMetadata.generate().encode())
    READERS[name](file)
    for mode in (0o602, 0o620, 0o666):
        file.chmod(mode)
        with pytest.raises(KeyRetrievalError) as caught:
            READERS[name](file)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_secret_of_another_user_is_refused(file: Path, name: str) -> None:
    os.chown(file, 12345, -1)
    with pytest.raises(KeyRetrievalError) as caught:
        READERS[name](file)
    assert SECRET not in str(caught.value)


def test_a_secret_that_others_may_read_is_taken(file: Path) -> None:
    """As containers mount them; `modcrypt doctor` and the command line warn of them."""
    file.chmod(0o644)
    for name in ("passphrase", "key"):
        READERS[name](file)


def test_a_path_is_of_root_only_with_its_links_and_folders(tmp_path: Path) -> None:
    assert not only_root_can_write(tmp_path)  # below /tmp, which everybody can write
    link = tmp_path / "link"
    link.symlink_to("/usr")
    assert not only_root_can_write(link)
    assert only_root_can_write("/usr/lib")
    with pytest.raises(FileNotFoundError):
        only_root_can_write("/usr/nowhere")


@pytest.mark.parametrize("mode", [0o664, 0o666, 0o646])
def test_a_public_file_that_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "partner.pub"
    path.write_text(str(mc.Identity.generate("x25519").recipient))
    mc.Recipient.load(path)
    path.chmod(mode)
    with pytest.raises(KeyRetrievalError, match="writable by others"):
        mc.Recipient.load(path)


def test_a_public_file_in_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partner.pub"
    path.write_text(str(mc.Identity.generate("x25519").recipient))
    tmp_path.chmod(0o1777)
    check_unalterable(path, path.stat())  # as in /tmp, where others cannot replace it
    tmp_path.chmod(0o777)
    with pytest.raises(KeyRetrievalError, match="run chmod go-w on the folder"):
        mc.Recipient.load(path)

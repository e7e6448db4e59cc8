"""A SoftHSM with one token, in a folder of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pkcs11 = pytest.importorskip("pkcs11")

from modcrypt.kms.services.pkcs11 import Pkcs11Kms, open_pkcs11  # noqa: E402 (needs it)

MODULES = [
    *Path("/usr/lib/softhsm").glob("libsofthsm2.so"),
    *Path("/usr/lib").glob("*/softhsm/libsofthsm2.so"),
    *Path("/usr/lib64").glob("*/libsofthsm2.so"),
    *Path("/usr/local/lib/softhsm").glob("libsofthsm2.so"),
]
PIN, SO_PIN, WRONG_PIN = "Pq7-token-pin", "Sq8-officer-pin", "Zz9-wrong-pin"
MASTER = bytes(range(0x40, 0x60))


@dataclass(frozen=True)
class SoftHsm:
    """A SoftHSM with one token, `lake`, in a folder of its own."""

    module: Path
    folder: Path

    def uri(self, attributes: str = "token=lake", query: str = "") -> str:
        return f"pkcs11:{attributes}?module-path={self.module}{query}"

    def open(self, attributes: str = "token=lake", **options: Any) -> Pkcs11Kms:
        return open_pkcs11(self.uri(attributes), **{"pin": PIN, **options})

    def restart(self) -> None:
        """Start the module anew, which reads its settings and forgets sessions and logins."""
        pkcs11.lib(str(self.module)).reinitialize()

    def token(self, label: str) -> Any:
        return pkcs11.lib(str(self.module)).get_token(token_label=label)

    def add_token(self, label: str) -> None:
        run("softhsm2-util", "--init-token", "--free", "--label", label,
            "--pin", PIN, "--so-pin", SO_PIN)  # fmt: skip
        self.restart()

    def delete_token(self, label: str) -> None:
        run("softhsm2-util", "--delete-token", "--token", label)
        self.restart()

    def tool(self, *arguments: str) -> str:
        """Run OpenSC's pkcs11-tool on the token."""
        if shutil.which("pkcs11-tool") is None:
            pytest.skip("pkcs11-tool (Debian's opensc) is not installed")
        return run("pkcs11-tool", "--module", str(self.module), "--token-label", "lake",
                   "--login", "--pin", PIN, *arguments)  # fmt: skip

    @contextlib.contextmanager
    def _open_session(self) -> Iterator[Any]:
        client = self.open()  # which logs in, unless the process is logged in
        with self.token("lake").open(rw=True) as session:
            yield session
        del client

    def import_key(self, label: str, value: bytes = MASTER, **attributes: Any) -> None:
        """Put a key of a known value on the token, as an administrator may."""
        with self._open_session() as session:
            session.create_object(
                {
                    pkcs11.Attribute.CLASS: pkcs11.ObjectClass.SECRET_KEY,
                    pkcs11.Attribute.KEY_TYPE: pkcs11.KeyType.AES,
                    pkcs11.Attribute.TOKEN: True,
                    pkcs11.Attribute.LABEL: label,
                    pkcs11.Attribute.VALUE: value,
                    pkcs11.Attribute.ENCRYPT: True,
                    pkcs11.Attribute.DECRYPT: True,
                    **{pkcs11.Attribute[name]: value for name, value in attributes.items()},
                }
            )

    def destroy_keys(self, label: str) -> None:
        """Destroy all keys of a label."""
        with self._open_session() as session:
            for key in list(session.get_objects({pkcs11.Attribute.LABEL: label})):
                key.destroy()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def hsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftHsm]:
    if not MODULES or shutil.which("softhsm2-util") is None:
        pytest.skip("SoftHSM (Debian's softhsm2) is not installed")
    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\n")
    running = SoftHsm(MODULES[0], folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(settings))
        patch.delenv("MODCRYPT_PKCS11_PIN", raising=False)
        patch.delenv("MODCRYPT_PKCS11_MODULE", raising=False)
        running.add_token("lake")
        yield running
        pkcs11.lib(str(running.module)).finalize()  # the next user has its own settings

"""A writable file object that takes a plaintext Parquet file and publishes an encrypted one."""

from __future__ import annotations

import io
import sys

from modcrypt.io.destinations import Destination
from modcrypt.parquet.convert.encryptor import encrypt_parquet
from modcrypt.parquet.crypto.properties import AnyEncryption


class EncryptedOutput(io.BytesIO):
    """A file in memory that is encrypted and published when it is closed.

    Plaintext is held in memory until then, because a Parquet file is read from its end. No file
    appears if the `with` block fails, if `close` is called while an exception that was raised since
    the opening propagates, or if the object is never closed.

    Args:
        overwrite: Replace an existing destination; if False, `close` raises FileExistsError.
    """

    def __init__(
        self, destination: Destination, encryption: AnyEncryption, *, overwrite: bool = True
    ) -> None:
        super().__init__()
        self._destination, self._encryption = destination, encryption
        self._overwrite = overwrite
        # Writers close their file in a `finally` clause; the caller may be handling another error.
        self._error_before = sys.exc_info()[1]

    def close(self) -> None:
        """Encrypt and publish the file. Idempotent.

        Raises:
            FormatError: The bytes written are not a Parquet file.
            ValueError, ModcryptError, OSError: As `encrypt_parquet`; no file is left.
        """
        if self.closed:
            return
        try:
            if sys.exc_info()[1] is self._error_before:
                data = self.getvalue()  # makes no copy, and does not keep the file from closing
                encrypt_parquet(
                    data, self._destination, self._encryption, overwrite=self._overwrite
                )
        finally:
            super().close()

    def discard(self) -> None:
        """Close the file without publishing it. Idempotent."""
        super().close()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()  # The finalizer of `io` would call `close`.

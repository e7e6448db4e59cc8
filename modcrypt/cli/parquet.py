"""`modcrypt encrypt` and `decrypt`, for Parquet files and folders of them."""

from __future__ import annotations

from typing import Any

import cloup

from modcrypt.cli.batch import Batch, batch_options, in_place_option, paths_argument
from modcrypt.cli.options.kms_options import audit_option
from modcrypt.cli.options.parquet_options import (
    decryption_options,
    encryption_options,
    output_options,
    reading_options,
    sidecar_options,
)
from modcrypt.cli.shared import prove_option

# click keeps the lines of a paragraph after \b as they are.
_ENCRYPT_EXAMPLE = """\b
Examples: prices under a key of their own, ship dates readable by everyone
  modcrypt encrypt --key-file footer.key --column-key price=file:price.key \\
      --plaintext-column shipped orders.parquet orders.enc.parquet

\b
fresh keys, wrapped under master keys of a keyring; or as a policy says
  modcrypt encrypt --kms file:lake.keyring#footer --column-master-key price=pii \\
      --plaintext-column shipped orders.parquet orders.kms.parquet
  modcrypt encrypt --policy lake.toml orders.parquet orders.policy.parquet"""

_DECRYPT_EXAMPLE = """\b
Examples: what the footer key opens, without the columns under other keys
  modcrypt decrypt --key-file footer.key --on-missing-key drop \\
      orders.enc.parquet orders.public.parquet

\b
with the master keys of a keyring
  modcrypt decrypt --kms file:lake.keyring orders.kms.parquet orders.back.parquet"""


@cloup.command(epilog=_ENCRYPT_EXAMPLE)
@paths_argument
@encryption_options
@audit_option
@in_place_option
@prove_option
@batch_options
@sidecar_options
@output_options
def encrypt(*, paths: tuple[str, ...], **options: Any) -> int:
    """Encrypt a Parquet file, or all files of a folder.

    SOURCE is a file or folder: a path or, with fsspec installed, a URL. Several keep their names in
    the folder DESTINATION. The footer key encrypts every column that no option names. A file
    appears only when it is complete.

    With --kms or --policy, keys are made for each file and wrapped by a key service, and {path} in
    an AAD prefix stands for the file's path inside DESTINATION, {name} for its name.
    """
    batch = Batch("encrypt", paths, options)
    return batch.run(encryption=batch.encryption(options))


@cloup.command(epilog=_DECRYPT_EXAMPLE)
@paths_argument
@decryption_options
@reading_options
@in_place_option
@batch_options
@output_options
def decrypt(*, paths: tuple[str, ...], **options: Any) -> int:
    """Decrypt an encrypted Parquet file, or all files of a folder.

    SOURCE is a file or folder; several keep their names in the folder DESTINATION. modcrypt
    authenticates every module that it reads. A file appears only when it is complete. An AAD prefix
    given here must be the one that the file was written with.
    """
    batch = Batch("decrypt", paths, options)
    return batch.run(decryption=batch.decryption(options))

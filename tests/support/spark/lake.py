"""A keyring, keys in files, and the options of Spark that lead to both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modcrypt.parquet.crypto.properties import FileDecryptionProperties

PASSPHRASE = b"Zx9!kQ2vLw8@mN4p"
MASTERS = (b"spark master key of 32 bytes, 1!", b"spark master key of 32 bytes, 2!")
FOOTER, COLUMN = b"spark footer key", b"spark column key"
SECRETS = (PASSPHRASE, *MASTERS, FOOTER, COLUMN)


@dataclass(frozen=True)
class Lake:
    """A keyring under a passphrase, keys in files, and the options that lead to both."""

    folder: Path

    @property
    def policy(self) -> Path:
        """The policy, for columns of `tests.support.tables.small_table`."""
        return self.folder / "lake.toml"

    @property
    def by_policy(self) -> dict[str, str]:
        """Options: master keys in a keyring."""
        return {"policy": str(self.policy)}

    @property
    def by_keys(self) -> dict[str, str]:
        """Options: the same columns, by keys in files."""
        columns = dict.fromkeys(("name", "address"), f"file:{self.folder / 'column.key'}")
        return {
            "footerKey": f"file:{self.folder / 'footer.key'}",
            "columnKeys": json.dumps(columns),
        }

    def variant(self, name: str, text: str) -> dict[str, str]:
        """Return the options of another policy: this one's lines after `text`."""
        path = self.folder / f"{name}.toml"
        path.write_text(f"{text}\n{self.policy.read_text()}")
        return {"policy": str(path)}

    def open(self, options: Mapping[str, str]) -> FileDecryptionProperties:
        """Return the same keys as properties of modcrypt."""
        from modcrypt.spark.source.options import read_options

        return read_options({**options, "path": "."})[0].decryption_of(".")

"""Encryption of files for recipients alone, without a key service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.io.places import Place
from modcrypt.keys import Key
from modcrypt.kms.recipients.explicit_keys import ExplicitKeysFile
from modcrypt.kms.recipients.file_recipients import FileRecipients
from modcrypt.kms.recipients.recipient import Recipient, check_recipients
from modcrypt.parquet.crypto.path_prefix import PathPrefix
from modcrypt.parquet.crypto.properties import FileEncryptionProperties, check_name_list

DEK_LENGTH = 32  # length of a file's data key in bytes

_OPTIONS = frozenset(
    {
        "plaintext_footer",
        "encryption_algorithm",
        "store_aad_prefix",
        "data_page_v2_levels",
        "signing_key",
    }
)


@dataclass(frozen=True, kw_only=True)
class RecipientEncryption:
    """The encryption of each file with a fresh footer key, for all columns, for recipients.

    Args:
        recipients: Recipients, each of which opens the whole file.
        plaintext_columns: Names of columns or groups to leave unencrypted.
        aad_prefix: AAD prefix of the files, or its template.
        options: Further arguments of `FileEncryptionProperties`: `plaintext_footer`,
            `encryption_algorithm`, `store_aad_prefix`, `data_page_v2_levels` and `signing_key`.
        explicit_keys: Whether to also write the key of each file beside it, encrypted to the
            recipients, for readers without modcrypt: `_EXPLICIT_KEYS_FOR_NAME.json`.

    Raises:
        ValueError: There are no recipients, or too many, or an option is unknown.
    """

    recipients: Iterable[Recipient]
    plaintext_columns: Sequence[str] = ()
    aad_prefix: bytes | PathPrefix | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    explicit_keys: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipients", check_recipients(self.recipients))
        names = check_name_list(self.plaintext_columns, "plaintext_columns")
        object.__setattr__(self, "plaintext_columns", names)
        if unknown := sorted(self.options.keys() - _OPTIONS):
            raise ValueError(f"unknown options: {', '.join(unknown)}")

    @property
    def subjects(self) -> None:
        """Keys of subjects: none, as there is no key service that protects their vault."""
        return

    @property
    def column_keys(self) -> Mapping[str, object]:
        """Names of columns with their own keys: none, as every recipient opens the whole file."""
        return {}

    def for_check(self) -> FileEncryptionProperties:
        """Return properties with a temporary key, to check names and options."""
        prefix = self.aad_prefix
        if isinstance(prefix, PathPrefix):
            prefix = prefix("name")
        return self._make_properties(prefix, Key.generate(DEK_LENGTH))

    def for_file(self, place: Place | None, *, overwrite: bool = True) -> FileEncryptionProperties:
        """Create the keys of one file; arguments and errors are those of `KeyedEncryption`."""
        prefix = self.aad_prefix
        if isinstance(prefix, PathPrefix):
            prefix = prefix.of(place)
        if place is not None and not overwrite:
            place.check_absent()
        key = Key.generate(DEK_LENGTH)
        file = FileRecipients.create(tuple(self.recipients))
        if not self.explicit_keys:
            metadata = file.make_footer_metadata(key)
            return self._make_properties(prefix, key, footer_key_metadata=metadata)
        if place is None:
            raise ValueError("explicit keys are stored beside the file: pass a path or URL")
        stored = self.options.get("store_aad_prefix", True)
        beside = ExplicitKeysFile(place, file, key, None if stored else prefix)
        return self._make_properties(
            prefix, key, footer_key_metadata=beside.make_footer_metadata,
            companion=beside.companion,
        )  # fmt: skip

    def _make_properties(
        self, prefix: bytes | None, key: Key, **more: Any
    ) -> FileEncryptionProperties:
        return FileEncryptionProperties(
            footer_key=key, plaintext_columns=self.plaintext_columns, aad_prefix=prefix,
            **self.options, **more,
        )  # fmt: skip

"""The page of a file of a lake, to which a finding of a report leads."""

from __future__ import annotations

from modcrypt.errors import ModcryptError
from modcrypt.lake.file_policies import DatasetPolicies
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.parquet.verify.inspection import inspect_parquet


def draw_file(policies: DatasetPolicies, path: str) -> str:
    """Return the page of a file, opened with the declared keys as far as possible.

    The page shows what the footer states. Of a file whose footer does not open, it shows what
    verifying finds.

    Raises:
        OSError: The file cannot be read.
        ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
    """
    place = policies.place_of(path)
    properties: FileDecryptionProperties | None = None
    try:
        properties = policies.opening(place)
    except ValueError:  # the partition values name no master key
        properties = None
    where = {"filesystem": place.filesystem}
    try:
        return inspect_parquet(place.path, properties, **where).to_html()
    except ModcryptError:
        return verify_parquet(place.path, properties, regions=True, **where).to_html()

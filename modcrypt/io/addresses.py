"""Distinguish local paths from URLs. Only this module decides what is local."""

from __future__ import annotations

import os
import re
import urllib.parse

_SCHEME = r"[a-z][a-z0-9+.-]*"
_URL = rf"(?i:(?:{_SCHEME}::)*{_SCHEME}://|(?:{_SCHEME}::)+/)"  # compiled when a path has a colon
_LOCAL_URL = r"(?i:(file|local)://)"
_SINGLE_SLASH = r"^((?i:[a-z][a-z0-9+.-]+)):/(?!/)"
"""Form of a URL without a host in Hadoop and Spark (`file:/x`, `dbfs:/x`). The scheme has at least
two letters, as nobody registers shorter ones."""


def is_url(address: str) -> bool:
    """Return whether fsspec would take an address for a URL."""
    return ":" in address and re.match(_URL, address) is not None


_SAME_STORES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
"""Schemes of URLs, by others for the same objects."""


def find_inside(url: str, folder: str) -> str | None:
    """Return the path inside a folder of a store, by the text of both URLs.

    It is empty for the folder, and None outside. What follows the scheme is compared letter by
    letter, except for slashes at the end: stores do not decode it.
    """
    if not (is_url(url) and is_url(folder)):
        return None
    path, base = (f"{_name_store(each)}/" for each in (url, folder))
    return path[len(base) : -1] if path.startswith(base) else None


def _name_store(url: str) -> str:
    scheme, _, rest = url.rstrip("/").partition("://")
    return f"{_SAME_STORES.get(scheme.lower(), scheme.lower())}://{rest}"


def add_authority(url: str) -> str:
    """Return a URL as fsspec spells it: with an empty authority (RFC 3986, 3.2) after one slash."""
    return re.sub(_SINGLE_SLASH, r"\1:///", url)


def local_path(address: str | os.PathLike[str]) -> str | None:
    """Return the local path of an address, or None for a URL of fsspec, which only a str can be.

    A relative path whose first folder is named like a scheme (`name:/file`) has to begin with `./`.
    """
    if not isinstance(address, str):
        return os.fspath(address)
    if ":" not in address:
        return address
    if re.match("file:(?!/)", address, re.IGNORECASE):
        raise ValueError(f"{address}: a file URL needs an absolute path, as in file:///folder/file")
    address = add_authority(address)
    if match := re.match(_LOCAL_URL, address):
        if not (path := address[match.end() :]):
            raise ValueError(f"{address}: the URL names no file; write file:///FOLDER/FILE")
        # File URIs are percent-encoded (RFC 8089): pathlib and pyarrow follow it, fsspec does not.
        # Only fsspec has `local:`, so modcrypt reads it as fsspec does.
        is_quoted = match[1].lower() == "file"
        return os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(path))) if is_quoted else path
    return None if is_url(address) else address

"""Find the file system that an address belongs to.

File systems are those of PyArrow and of fsspec, recognised by the methods that they have. modcrypt
accesses files directly if their file system says that they are local.
"""

from __future__ import annotations

import os
import posixpath
import re
from importlib.util import find_spec
from typing import Any

from modcrypt.io.addresses import add_authority, local_path
from modcrypt.io.store_errors import HADOOP, add_url_to_errors
from modcrypt.runtime.extras import extra_of_scheme, install_command


def locate(where: Any, filesystem: Any) -> tuple[Any, str]:
    """Return the file system of a file, None for the local one, and the file's path in it.

    Raises:
        TypeError: `where` is not a path, or `filesystem` is not a file system.
        ValueError: `where` is a URL, and fsspec is not installed or does not know its protocol; or
            a file URL has no absolute path.
    """
    if filesystem is not None:
        path = os.fspath(where) if isinstance(where, str | os.PathLike) else None
        if not isinstance(path, str):
            raise TypeError(f"with a filesystem, give a path in it, not {type(where).__name__}")
        return _unwrap(filesystem, path)
    if (local := local_path(where)) is not None:
        return None, local
    return _locate_url(where)


def _locate_url(url: str) -> tuple[Any, str]:
    scheme = url.partition(":")[0].lower()
    if match := re.match("dbfs:/+", url, re.IGNORECASE):
        raise ValueError(
            f"{url}: only Databricks supports dbfs URLs; use the path /dbfs/{url[match.end() :]}, "
            "or a volume (/Volumes/...), or pass filesystem="
        )
    extra = extra_of_scheme(scheme)
    missing = f"{url}: {scheme} URLs need an extra: {install_command(extra or 'fsspec')}"
    if scheme in HADOOP and find_spec("hdfs_native") is None:
        raise ValueError(f"{missing}; or let Spark's own Parquet read them (modcrypt.spark.native)")
    if scheme not in _ROOTED and not url.partition(":")[2].strip("/"):
        raise ValueError(f"{url}: the URL names no bucket or host; write {scheme}://BUCKET/PATH")
    try:
        import fsspec
    except ImportError:
        raise ValueError(missing) from None
    try:
        with add_url_to_errors(None, url):
            return _unwrap(*fsspec.core.url_to_fs(add_authority(_as_data_lake_url(url))))
    except ImportError as error:  # names the package of the protocol
        raise ValueError(f"{missing} ({error})" if extra else f"{url}: {error}") from None
    except (TypeError, RuntimeError) as error:  # an argument is missing, or a setting of Hadoop
        raise ValueError(f"{url}: the URL or its configuration is incomplete: {error}") from None
    except ValueError as error:
        if not str(error).startswith("Protocol not known"):
            raise
        if extra:  # fsspec knows some protocols only once their packages are installed
            raise ValueError(missing) from None
        raise ValueError(
            f"{url}: fsspec knows no such protocol; use another URL of the same store, or pass "
            "filesystem="
        ) from None


_ROOTED = ("memory", *HADOOP)  # protocols whose URLs may be without a bucket or host


def _as_data_lake_url(url: str) -> str:
    """Return the abfs URL of a wasb URL, which is Hadoop's older name for the same container."""
    match = re.match(r"wasb(s?)://([^/@]+)@([^/.]+)\.blob\.(.*)", url, re.IGNORECASE | re.DOTALL)
    return url if match is None else "abfs{}://{}@{}.dfs.{}".format(*match.groups())


_KEPT: dict[int, Any] = {}
"""File systems of hdfs-native, which are never freed: a forked child has none of their threads, and
would wait for them forever."""


def _unwrap(filesystem: Any, path: str) -> tuple[Any, str]:
    """Return the innermost file system, None for the local one, and the path in it."""
    if hasattr(filesystem, "base_fs"):  # pyarrow's SubTreeFileSystem
        below = posixpath.join(filesystem.base_path, path.lstrip("/"))
        return _unwrap(filesystem.base_fs, below)
    if hasattr(filesystem, "handler") and hasattr(filesystem.handler, "fs"):  # FSSpecHandler
        return _unwrap(filesystem.handler.fs, path)
    if is_arrow(filesystem):
        return (None if filesystem.type_name == "local" else filesystem), path
    if hasattr(filesystem, "open") and hasattr(filesystem, "protocol"):
        path = filesystem._strip_protocol(path)
        if is_arrow(getattr(filesystem, "fs", None)):  # fsspec's ArrowFSWrapper
            return _unwrap(filesystem.fs, path)
        if type(filesystem).__module__.startswith("hdfs_native"):
            _KEPT[id(filesystem)] = filesystem
        protocol = filesystem.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        return (None if "file" in names else filesystem), path
    raise TypeError(
        f"a filesystem is one of pyarrow.fs or of fsspec, not {type(filesystem).__name__}"
    )


def is_arrow(filesystem: Any) -> bool:
    """Return whether a file system is one of PyArrow, not of fsspec."""
    return hasattr(filesystem, "open_input_file")


def is_same_store(filesystem: Any, other: Any) -> bool:
    """Return whether two file systems are equal, or both are fsspec's with the same options.

    fsspec makes an instance for each thread, and these never compare equal. None is the local one.
    """
    if filesystem == other:
        return True
    if type(filesystem) is not type(other) or not hasattr(filesystem, "storage_options"):
        return False
    options = [(fs.storage_args, fs.storage_options) for fs in (filesystem, other)]
    return bool(options[0] == options[1])


def forget_listings(filesystem: Any) -> bool:
    """Let the store be asked again; return whether fsspec had kept listings, which may be old."""
    kept = bool(getattr(filesystem, "dircache", None))
    if hasattr(filesystem, "invalidate_cache"):
        filesystem.invalidate_cache()
    return kept


def open_stored(filesystem: Any, path: str) -> Any:
    """Open a file of fsspec for reading, also one that is newer than a listing."""
    try:
        return filesystem.open(path, "rb")
    except FileNotFoundError:
        if not forget_listings(filesystem):
            raise
        return filesystem.open(path, "rb")

"""Write files of stores that appear complete or not at all.

The file appears by the one request that completes its upload or moves it to its path.
"""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from modcrypt.io.places import exists_error
from modcrypt.io.publication import temporary_name
from modcrypt.io.sinks import ObjectSink
from modcrypt.io.store_errors import HADOOP, add_url_to_errors
from modcrypt.io.stores import is_arrow
from modcrypt.runtime.fork_safety import fork_safe

_MEMORY = fork_safe(threading.Lock())
"""Held while a file of fsspec's memory appears: only threads of this process can be faster."""


def open_upload(
    filesystem: Any, path: str, name: str, *, overwrite: bool
) -> AbstractContextManager[ObjectSink]:
    """Open a sink whose file appears when the block ends without an error.

    Errors call the file `name`. Raise FileExistsError if it exists and `overwrite` is False.
    """
    if is_arrow(filesystem):
        # PyArrow cannot abandon an upload: closing the stream, or losing it, completes it.
        return _open_moved_sink(
            filesystem, path, name, posixpath.dirname(path),
            lambda: not overwrite and filesystem.get_file_info(path).type.name != "NotFound",
            create=lambda where: filesystem.open_output_stream(where, compression=None),
            move=filesystem.move, delete=filesystem.delete_file, lock=contextlib.nullcontext(),
        )  # fmt: skip
    if getattr(filesystem, "writes_whole_files", False):
        return _open_whole_sink(filesystem, path, overwrite)
    # Their files can withhold the last request, which makes an object appear. All files of fsspec
    # have `discard`, but few implement it.
    packages = {cls.__module__.partition(".")[0] for cls in type(filesystem).__mro__}
    if not packages.isdisjoint({"s3fs", "gcsfs"}):
        return _open_upload_sink(filesystem, path, name, overwrite)
    return _open_moved_sink(
        filesystem, path, name, filesystem._parent(path),
        lambda: not overwrite and filesystem.exists(path),
        create=lambda where: filesystem.open(where, "wb"),
        move=partial(move_stored, filesystem, overwrite), delete=filesystem.rm_file,
        lock=_MEMORY if filesystem.protocol == "memory" else contextlib.nullcontext(),
    )  # fmt: skip


def move_stored(filesystem: Any, overwrite: bool, old: str, new: str) -> None:
    """Move a file of fsspec, whose own `mv` treats brackets and stars in a path as patterns."""
    from fsspec import AbstractFileSystem

    if type(filesystem).mv is AbstractFileSystem.mv:
        filesystem.cp_file(old, new)
        filesystem.rm_file(old)
    elif filesystem.protocol in HADOOP:  # whose server refuses to replace a file unless asked to
        filesystem.mv(old, new, overwrite=overwrite)
    else:
        filesystem.mv(old, new)


@contextlib.contextmanager
def _open_moved_sink(
    filesystem: Any, path: str, name: str, folder: str, must_not_replace: Callable[[], bool], *,
    create: Callable[[str], Any], move: Callable[[str, str], object],
    delete: Callable[[str], object], lock: AbstractContextManager[object],
) -> Iterator[ObjectSink]:  # fmt: skip
    """Write beside the destination and move the file there, as for local files."""
    add_url = add_url_to_errors(filesystem, path)
    if add_url(must_not_replace)():
        raise exists_error(name)
    temporary = posixpath.join(folder, temporary_name())
    try:
        with add_url(create)(temporary) as file:
            yield ObjectSink(file, add_url(file.write))
        with lock:
            if add_url(must_not_replace)():  # the destination may have been created concurrently
                raise exists_error(name)
            add_url(move)(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):  # report the first error, not this one
            delete(temporary)
        raise


@contextlib.contextmanager
def _open_whole_sink(filesystem: Any, path: str, overwrite: bool) -> Iterator[ObjectSink]:
    """Rely on the file system: its files appear when they are closed, and not after an error."""
    add_url = add_url_to_errors(filesystem, path)
    with add_url(filesystem.open)(path, "wb" if overwrite else "xb") as file:
        yield ObjectSink(file, add_url(file.write))


@contextlib.contextmanager
def _open_upload_sink(
    filesystem: Any, path: str, name: str, overwrite: bool
) -> Iterator[ObjectSink]:
    """Upload to the destination, and send the last request when everything succeeded."""
    add_url = add_url_to_errors(filesystem, path)
    filesystem.invalidate_cache(path)  # an old listing may lack the file
    if not overwrite and add_url(filesystem.exists)(path):
        raise exists_error(name)
    # "x": the store itself refuses to replace an object that was created concurrently.
    # `autocommit`: a transaction of the file system would keep the file until it ends.
    file = add_url(filesystem.open)(path, "wb" if overwrite else "xb", autocommit=True)
    try:
        yield ObjectSink(file, add_url(file.write))
        add_url(_complete_upload)(file, name)
    except BaseException:
        file.closed = True  # otherwise its finalizer would upload the rest
        with contextlib.suppress(Exception):  # report the first error, not this one
            file.discard()
        raise


_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")
"""Codes by which S3 refuses an object that was created concurrently; AWS names the condition."""


def _complete_upload(file: Any, name: str) -> None:
    """Make the object appear; raise FileExistsError if another one was created concurrently."""
    try:
        file.close()
    except OSError as error:
        answer = getattr(error.__cause__, "response", None)  # a dict for botocore alone
        code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
        if isinstance(error, FileExistsError) or code in _TAKEN:
            raise exists_error(name) from None
        raise

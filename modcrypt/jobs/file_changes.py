"""Changes of files and of their external key material that rotation and shredding share."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from modcrypt.io.destinations import open_replacement, open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sinks import copy_range
from modcrypt.io.sources import Source
from modcrypt.pkmt1.material import encode_store

_ATTEMPTS = 3  # to replace key material that another process changes at the same time


def replace_file(place: Place, source: Source, data: bytes, *, keep: int = 0) -> None:
    """Replace a file by its first `keep` bytes and `data`, unless it has changed since it was read.

    Raise OSError if the file has changed, or can't be written.
    """
    with open_replacement(place, source.stamp) as sink:
        if keep:
            copy_range(source, sink, 0, keep)
        sink.append(data)


def update_store(
    store: Place,
    read: Callable[[], dict[str, str] | None],
    change: Callable[[dict[str, str]], Mapping[str, str] | None],
    check: Callable[[], object],
) -> dict[str, str]:
    """Replace external key material as a whole, or delete it with its last key.

    Return the old key material, which is empty if none exists. `read` returns None if no key
    material exists; `change` returns None to keep the old. `check` is called before the change,
    under the lock.
    """
    for _ in range(_ATTEMPTS):
        old = read()
        new = None if old is None else change(old)
        if old is None or new is None:
            return old or {}
        with store.lock():
            if read() != old:
                continue  # another process changed it, perhaps a rotation
            check()
            store.check_writable()  # deleting a link would leave the keys that it leads to
            if new:
                with open_sink_at(store) as sink:
                    sink.append(encode_store(new))
            else:
                store.remove()
        return old
    raise OSError(
        errno.ESTALE,
        "another process keeps changing the key material; try again when it has finished",
        store.path,
    )

"""Files beside those to encrypt that would keep values of encrypted columns in plaintext."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.jobs.leaks.exposure import SUMMARIES, Secrecy
from modcrypt.jobs.leaks.file_contents import describe_partitions
from modcrypt.jobs.leaks.scan import Folder, ValueLeak, list_all_files
from modcrypt.parquet.crypto.properties import Encryption
from modcrypt.parquet.datasets.discovery import is_dataset, is_hidden
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE

MAX_LISTED = 20
"""Largest number of files that an error names."""

_TEMPORARY = ".modcrypt-"  # beginning of the names of files that modcrypt is writing
_SUMMARY = "parquet-summary"
_CHECKSUM = "stale-checksum"  # conversion removes those of the files that it replaces


def check_sidecars(
    source: Place, destination: Place | None, encryption: Encryption, *,
    drop_summaries: bool = False,
) -> None:  # fmt: skip
    """Raise if files that encryption leaves as they are show values of the columns it encrypts.

    The hidden files of the folder that is written are examined, and names of partitions, also in
    its own path: the other files are encrypted or refused themselves. `drop_summaries` accepts the
    summaries of footers that the function of this name removes.

    Raises:
        ValueError: Such files were found; the message lists them.
        LimitError, OSError: As in `find_leaks`.
    """
    secrecy = Secrecy.of_encryption(encryption)
    written = source if destination is None else destination
    above = Folder(partitions=Counter(describe_partitions("", written.resolve().path)))
    leaks = list(above.judge(secrecy).leaks)
    if is_dataset(source.path, source.filesystem):
        leaks += [] if destination is None else _find(source, secrecy, lambda _: True)
        leaks += [
            leak
            for leak in _find(written, secrecy, _is_converted)
            if leak.kind != _CHECKSUM
            and not (drop_summaries and leak.kind == _SUMMARY and _is_dropped(written, leak.path))
        ]
    if leaks:
        raise ValueError(_describe(leaks))


def _is_converted(inside: str) -> bool:
    """Return whether conversion processes a file of a folder, or wrote it for a moment."""
    return not is_hidden(inside, "") or inside.rpartition("/")[2].startswith(_TEMPORARY)


def _is_dropped(folder: Place, path: str) -> bool:
    """Return whether a path is that of a summary beside or above files that are converted."""
    # Conversion does not touch hidden folders, so their summaries are still true.
    inside = _folder_in(folder, path)
    return path.rpartition("/")[2] in SUMMARIES and not is_hidden(inside, "")


def _folder_in(folder: Place, path: str) -> str:
    """Return the path of the folder of a file inside a folder; empty for the folder itself."""
    return path[len(folder.path) :].lstrip("/").rpartition("/")[0]


def _find(folder: Place, secrecy: Secrecy, skip: Callable[[str], bool]) -> Sequence[ValueLeak]:
    with contextlib.suppress(FileNotFoundError):  # a destination that is made later
        return Folder.scan(folder, skip=skip).judge(secrecy).leaks
    return ()


def _describe(leaks: Sequence[ValueLeak]) -> str:
    listed = "; ".join(str(leak) for leak in leaks[:MAX_LISTED])
    more = f"; and {len(leaks) - MAX_LISTED} more" if len(leaks) > MAX_LISTED else ""
    is_any_summary = any(leak.kind == _SUMMARY for leak in leaks)
    drop = "pass drop_summaries=True to remove summaries, or " if is_any_summary else ""
    return (
        "values of encrypted columns would stay readable beside the files, so nothing was changed; "
        f"{drop}pass allow_leaks=True to encrypt nevertheless: {listed}{more}"
    )


def drop_summaries(folder: Place, converted: Iterable[str] | None = None) -> list[Place]:
    """Remove the summaries of footers in a folder, which encryption made stale; return them.

    Those in hidden folders, which conversion does not touch, are kept; so are those neither beside
    nor above one of the files whose paths in the folder are `converted`, unless that is None.
    """
    above = None if converted is None else {at for path in converted for at in _folders_of(path)}
    named = [
        place
        for place, is_closed in list_all_files(folder)
        if _is_dropped(folder, place.path)
        and not is_closed
        and (above is None or _folder_in(folder, place.path) in above)
    ]
    found = [place for place in named if _is_parquet(place)]
    for place in found:
        place.remove()
    return found


def _folders_of(path: str) -> Iterator[str]:
    """Yield the folders above a file; the empty one is the first folder itself."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _is_parquet(place: Place) -> bool:
    """Return whether a file begins as plaintext Parquet does: another program's file is kept."""
    try:
        with open_source_at(place, stamped=False) as source:
            return source.read_at(0, min(source.size, MAGIC_SIZE)) == MAGIC_PLAINTEXT
    except FileNotFoundError:  # a broken link, or removed meanwhile
        return False

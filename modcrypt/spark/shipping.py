"""A zip with which Spark brings modcrypt to executors that have not installed it.

    spark_package("deps.zip")                      # --archives deps.zip#deps: with dependencies
    spark_package("modcrypt.zip", alone=True)      # --py-files modcrypt.zip: modcrypt itself

The packages are those installed here, without a download: executors need the same version of Python
and the same kind of machine. Python imports modules from a zip, but no compiled ones, so that the
dependencies have to be unpacked, as Spark does with archives.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.abc import ResourceLoader
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple, cast

from modcrypt.io.destinations import open_sink
from modcrypt.io.sinks import Sink
from modcrypt.runtime.extras import missing_extra

_MODULES = ("pyspark_modcrypt", "pyspark_modcrypt_job")
"""Modules beside the package, by which Spark finds the data sources."""

_FROM_SPARK = frozenset({"pyspark", "py4j"})  # packages that Spark itself brings to executors
_COMPILED = (".so", ".pyd", ".dylib")
_LEFT_OUT = frozenset({"__pycache__", "tests"})

Content = tuple[str, bytes]  # a file in the zip: its name and its bytes


def spark_package(
    path: str | os.PathLike[str],
    *,
    alone: bool = False,
    extras: Collection[str] = (),
    overwrite: bool = False,
) -> None:
    """Write a zip of modcrypt and of what it needs on executors, as installed here.

    Args:
        path: Path of the zip.
        alone: Whether to leave out the dependencies, for `--py-files`; the executors must have
            them. Otherwise pass the zip as an archive, which Spark unpacks.
        extras: Extras of modcrypt that executors need, such as "aws"; "spark" is included.
        overwrite: Whether to replace an existing file.

    Raises:
        FileExistsError: The file exists.
        ModuleNotFoundError: A package of an extra is not installed.
        ValueError: modcrypt has no such extra, or extras are given with `alone`.
    """
    if alone and extras:
        raise ValueError("a zip of modcrypt alone has no extras; install them on the executors")
    contents = _read_modcrypt(compiled=False) if alone else _read_all({"spark", *extras})
    with (
        open_sink(path, overwrite=overwrite) as sink,
        zipfile.ZipFile(cast(IO[bytes], _Appending(sink)), "w") as archive,
    ):
        for name, data in contents:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)


class _Appending:
    """The part of a file that a zip needs if it is written from its start to its end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: bytes | memoryview) -> int:
        self._sink.append(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the sink keeps no data back."""


def _read_modcrypt(*, compiled: bool) -> Iterator[Content]:
    """Yield the files of modcrypt, which may be a checkout or a zip itself."""
    for name, data in _read_folder(files("modcrypt"), "modcrypt"):
        if compiled or not name.endswith(_COMPILED):
            yield name, data
    for module in _MODULES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        loader = cast(ResourceLoader, spec.loader)
        yield f"{module}.py", loader.get_data(spec.origin)


def _read_folder(folder: Traversable, name: str) -> Iterator[Content]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inside = f"{name}/{entry.name}"
        if entry.is_dir() and entry.name not in _LEFT_OUT:
            yield from _read_folder(entry, inside)
        elif entry.is_file():
            yield inside, entry.read_bytes()


def _read_all(extras: Collection[str]) -> Iterator[Content]:
    """Return the files of modcrypt and of its dependencies; check first that they are there."""
    modcrypt = distribution("modcrypt")
    if unknown := set(extras) - set(modcrypt.metadata.get_all("Provides-Extra") or ()):
        raise ValueError(f"modcrypt has no extra {', '.join(sorted(unknown))}")
    found = _Found({}, set())
    for extra in ("", *sorted(extras)):
        _collect(modcrypt, extra, found, is_needed=bool(extra))
    return _read_found([found.packages[name] for name in sorted(found.packages)])


def _read_found(distributions: Collection[Distribution]) -> Iterator[Content]:
    yield from _read_modcrypt(compiled=True)
    for package in distributions:
        for file in package.files or ():
            if ".." not in file.parts and not _LEFT_OUT.intersection(file.parts):
                with suppress(FileNotFoundError):  # deleted after the installation
                    yield file.as_posix(), Path(str(package.locate_file(file))).read_bytes()


class _Found(NamedTuple):
    packages: dict[str, Distribution]
    seen: set[tuple[str, str]]


def _collect(package: Distribution, extra: str, found: _Found, *, is_needed: bool = False) -> None:
    """Add what a package, or an extra of it, requires, and what that requires in turn."""
    # Markers about the machine are not evaluated: what is not installed was not needed here.
    if (package.name, extra) in found.seen:
        return
    found.seen.add((package.name, extra))
    for requirement in package.requires or ():
        text, _, marker = requirement.partition(";")
        of_extra = _EXTRA.search(marker)
        own_name = _NAME.match(text)
        assert own_name is not None
        name = re.sub(r"[-_.]+", "-", own_name[0]).lower()
        if (of_extra[1] if of_extra else "") != extra or name in _FROM_SPARK:
            continue
        try:
            found.packages[name] = distribution(name)
        except PackageNotFoundError:
            if is_needed:
                raise missing_extra(f"the extra {extra}", extra) from None
            continue
        extras = _EXTRAS.search(text)
        for inner in ("", *(extras[1].split(",") if extras else ())):
            _collect(found.packages[name], inner.strip(), found)


_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_EXTRAS = re.compile(r"\[(.*?)\]")

"""Contents of a folder: names, bytes and times."""

from __future__ import annotations

from pathlib import Path


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def list_folder(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bytes_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return contents and times of all files, which show whether anything was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}

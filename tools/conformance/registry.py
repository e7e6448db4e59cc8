"""The clients of clients/clients.toml: how each is built and started, and what it needs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).with_name("clients")
BUILD = ROOT / "build" / "conformance"
BUILD_SECONDS = 1200


class SkippedError(Exception):
    """The client can't be run here."""


@dataclass(frozen=True)
class Entry:
    """A client; names in braces in its commands are replaced, see clients.toml.

    `xfails` is the file of its expected failures, and need not exist.
    """

    name: str
    command: tuple[str, ...]
    build: tuple[tuple[str, ...], ...] = ()
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    xfails: Path | None = None
    folder: Path = ROOT

    def argv(self) -> list[str]:
        """Return the command that starts the client."""
        return [self._fill(part) for part in self.command]

    def prepare(self) -> None:
        """Build the client.

        Raises:
            Skipped: A program or package is missing, or the build failed.
        """
        for program in self.programs:
            if shutil.which(program) is None:
                raise SkippedError(f"{program} is not installed")
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise SkippedError(f"the Python package {package} is not installed")
        (BUILD / self.name).mkdir(parents=True, exist_ok=True)
        for step in self.build:
            self._run(step)

    def _run(self, step: tuple[str, ...]) -> None:
        command = [self._fill(part) for part in step]
        folder = CLIENTS / self.name.replace("-", "_")
        try:
            subprocess.run(
                command, cwd=folder if folder.is_dir() else ROOT, check=True, capture_output=True,
                text=True, timeout=BUILD_SECONDS,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            raise SkippedError(f"the build failed: {error.stderr.strip()[-500:]}") from None
        except subprocess.TimeoutExpired:
            raise SkippedError(f"the build took more than {BUILD_SECONDS} seconds") from None

    def _fill(self, part: str) -> str:
        values = {"{python}": sys.executable, "{build}": str(BUILD / self.name),
                  "{clients}": str(CLIENTS), "{pyspark}": _pyspark_jars()}  # fmt: skip
        for name, value in values.items():
            part = part.replace(name, value)
        return part


def _pyspark_jars() -> str:
    """Return the folder of pyspark's jars, which has parquet-java; the name itself without it."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    return f"{places[0]}/jars" if places else "pyspark"


def known_clients() -> dict[str, Entry]:
    """Return the clients by name, in the order of the file."""
    with (CLIENTS / "clients.toml").open("rb") as file:
        listed = tomllib.load(file)
    return {
        name: Entry(
            name=name,
            command=tuple(entry["command"]),
            build=tuple(map(tuple, entry.get("build", ()))),
            programs=tuple(entry.get("programs", ())),
            packages=tuple(entry.get("packages", ())),
            xfails=CLIENTS / f"{name}.xfails",
        )
        for name, entry in listed.items()
    }

"""The wheel: the same bytes each time, and a description that needs no other file."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.hatch_metadata import describe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two wheels that were built one after the other."""
    made: list[Path] = []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"dist{number}")
        build = ("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
        subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
        made += folder.glob("*.whl")
    return made


def test_a_wheel_built_twice_has_the_same_hash(wheels: list[Path]) -> None:
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels)
    assert first == second


def test_the_description_has_no_link_into_the_repository(wheels: list[Path]) -> None:
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(wheel.read(name))
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    description = metadata.get_payload()
    assert isinstance(description, str)
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "key service and a policy" in re.sub(r"\s+", " ", description)


def test_links_with_an_address_stay() -> None:
    text = "[a](b.md), [c](https://example.com) and [d](#e)"
    assert describe(text) == "a, [c](https://example.com) and d"


def test_the_extra_all_has_every_other_one() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(everything.removeprefix("modcrypt[").removesuffix("]").split(",")) == extras


def test_the_recipe_for_conda_asks_for_the_same_versions() -> None:
    recipe = (ROOT / "tools/conda/recipe.yaml").read_text()
    for entry in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]):
        name, bound = re.fullmatch(r"([a-z0-9-]+)(>=\S+)", entry).groups()  # type: ignore[union-attr]
        assert re.search(rf"- (python-)?{name} {bound}$", recipe, re.MULTILINE), entry
    assert f'version: "{PROJECT["version"]}"' in recipe


def test_versions_of_the_project_agree() -> None:
    import modcrypt

    assert modcrypt.__version__ == PROJECT["version"]
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()

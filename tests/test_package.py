"""The wheel: the same bytes each time, and a description that needs no other file."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from modcrypt.runtime import extras as extras_module
from tests.support.paths import ROOT
from tools.hatch_metadata import ADDRESS, describe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


REPOSITORY = "https://example.com/group/modcrypt"


def build_wheel(folder: Path, repository: str = "") -> Path:
    """Build a wheel into a folder; `repository` is the address that a release has."""
    build = ("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    environment = os.environ | {ADDRESS: repository}
    subprocess.run(
        [sys.executable, *build], cwd=ROOT, check=True, capture_output=True, env=environment
    )
    (made,) = folder.glob("*.whl")
    return made


def read_metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        return message_from_bytes(wheel.read(name))


def links_of(metadata: Message) -> list[str]:
    description = metadata.get_payload()
    assert isinstance(description, str)
    assert "key service" in description
    return re.findall(r"\]\(([^)]+)\)", description)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def test_a_wheel_built_twice_has_the_same_hash(wheel: Path, tmp_path: Path) -> None:
    first, second = (
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, build_wheel(tmp_path))
    )
    assert first == second


def test_the_description_has_no_link_into_the_repository(wheel: Path) -> None:
    metadata = read_metadata(wheel)
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert [link for link in links_of(metadata) if not link.startswith("https://")] == []
    assert metadata.get_all("Project-URL") is None


def test_a_release_links_to_the_repository_that_it_was_built_in(tmp_path: Path) -> None:
    metadata = read_metadata(build_wheel(tmp_path, REPOSITORY))
    files = f"{REPOSITORY}/blob/v{PROJECT['version']}"
    links = links_of(metadata)
    assert f"{files}/docs/tutorial.md" in links
    targets = [link.removeprefix(f"{files}/") for link in links if link.startswith(REPOSITORY)]
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert [link for link in links if not link.startswith("https://")] == []
    addresses = dict(entry.split(", ") for entry in metadata.get_all("Project-URL") or ())
    assert addresses["Source"] == REPOSITORY
    assert {*addresses} == {"Source", "Issues", "Documentation", "Changelog"}


def test_links_with_an_address_stay() -> None:
    text = "[a](b.md), [c](https://example.com)"
    assert describe(f"![picture](a.svg)\n\n{text}", None) == "a, [c](https://example.com)"
    assert describe(text, "https://x/y") == "[a](https://x/y/b.md), [c](https://example.com)"


def test_the_extra_all_has_every_other_one() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(everything.removeprefix("modcrypt[").removesuffix("]").split(",")) == extras


def test_errors_name_extras_that_exist_and_bring_what_is_missing() -> None:
    extras = PROJECT["optional-dependencies"]
    for module, extra in [*extras_module._MODULES.items(), *extras_module._SCHEMES.items()]:
        assert extra in extras, module
    for scheme, package in (("s3", "s3fs"), ("gs", "gcsfs"), ("abfss", "adlfs")):
        named = str(extras_module.extra_of_scheme(scheme))
        assert any(package in requirement for requirement in extras[named])


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

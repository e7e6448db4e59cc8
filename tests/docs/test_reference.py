"""The pages of the reference name everything that is public."""

from __future__ import annotations

import re

import pyarrow.parquet

import modcrypt.parquet
from modcrypt.runtime.lazy_names import public_names
from tests.support.paths import ROOT


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs/reference/api").glob("*.md"))
    described = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(described) == len({*described})
    more = ("ags1", "iceberg", "jobs", "kms", "lake", "parquet", "report", "spark", "subjects")
    packages = ("modcrypt", *(f"modcrypt.{name}" for name in more))
    names = {f"{package}.{name}" for package in packages for name in public_names(package)}
    again = {f"modcrypt.parquet.File{kind}cryptionProperties" for kind in ("En", "De")}
    own = {name: getattr(modcrypt.parquet, name) for name in public_names("modcrypt.parquet")}
    of_pyarrow = vars(pyarrow.parquet)
    again |= {f"modcrypt.parquet.{name}" for name in own if own[name] is of_pyarrow.get(name)}
    assert {*described} == (
        (names | {f"modcrypt.errors.{name}" for name in modcrypt.errors.__all__})
        - again
        - {"modcrypt.spark.Settings", "modcrypt.lake.Lake", "modcrypt.errors.ModcryptError"}
    )


def test_the_configuration_page_names_every_member_and_variable() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "modcrypt").rglob("*.py"))
    variables = {*re.findall(r'"((?:MODCRYPT|VAULT|BAO)_[A-Z0-9_]+)"', code)}
    members = set(modcrypt.Policy.__dataclass_fields__)
    assert [name for name in sorted(variables | members) if f"`{name}`" not in page] == []

"""Stories of a lake's worst days, told by pages that end with a verification and a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.cli.program import run
from tests.support.guide import blocks_of, run_guide

STORIES = {"leaked-key": "people", "shred-tenant": "events", "show-auditor": "orders"}
"""Pages, and the folder of their dataset, which may be on S3."""

SPARK = {
    f"modcrypt {verb}": f"modcrypt {verb} --spark local[2]" for verb in ("apply", "shred", "verify")
}
"""Commands of the pages, and the same on Spark."""


def run_story(name: str, folder: Path, replace: Mapping[str, str] | None = None) -> None:
    """Run a page, which must end with a verification and a report."""
    page = f"how-to/{name}.md"
    run_guide(page, folder, replace=replace)
    commands = "".join(block.text for block in blocks_of(page) if block.language == "console")
    assert "$ modcrypt verify\n$ modcrypt report --html lake.html\n" in commands
    assert "</html>" in (folder / "lake.html").read_text()
    assert run(folder, "verify", "--config", "modcrypt.toml").returncode == 0


def run_story_on_s3(name: str, folder: Path, replace: Mapping[str, str] | None = None) -> None:
    """Run a page as it says for S3, in a bucket of the server that the environment names."""
    from tests.support.object_store import Bucket  # moto takes a while to load

    bucket, data = Bucket(), STORIES[name]
    here = {f'"{data}"': f'"s3://{bucket.name}/{data}"'}
    here |= {f"cp -r {data} backup": "true", " --copies backup": ""}  # a copy on the disk
    run_story(name, folder, {**here, **(replace or {})})
    assert not (folder / data).exists()
    assert bucket.keys()

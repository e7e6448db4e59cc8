"""Stories of a lake run from an empty folder to a report, on this machine and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import each_case, one_in
from tests.support.stories import STORIES, run_story, run_story_on_s3


@pytest.mark.parametrize("name", [*STORIES, "plaintext-found"])
def test_a_story_ends_with_a_report(name: str, tmp_path: Path) -> None:
    run_story(name, tmp_path)


@each_case("name", STORIES, quick=one_in(3))
def test_a_story_runs_on_s3(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    from tests.support.object_store import object_store

    with object_store() as store:
        for variable, value in store.environment.items():
            monkeypatch.setenv(variable, value)
        run_story_on_s3(name, tmp_path)

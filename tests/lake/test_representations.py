"""Short representations of results of a lake, whatever its size."""

from __future__ import annotations

from pathlib import Path

from modcrypt import Lake
from tests.support.lake_folder import make_lake


def test_results_are_represented_by_a_line(tmp_path: Path) -> None:
    lake = Lake.open(make_lake(tmp_path))
    (planned,), (done,) = lake.apply(dry_run=True), lake.apply()
    (status,), (verified,) = lake.status(), lake.verify()
    report = lake.report()
    assert repr(planned.plan).startswith("<LakePlan: dataset: orders, plan: 4 to encrypt")
    assert repr(done).startswith("<LakeApplication: dataset: orders, result: 4 encrypted")
    assert repr(status) == (
        "<DatasetStatus: dataset: orders, status: 4 files: 4 as declared; "
        "4 not verified since last change>"
    )
    assert repr(verified).startswith("<LakeVerification: dataset: orders, result: 4 of 4 files")
    assert "datasets: 1, files: 4, master keys: 2, not as declared: 0>" in repr(report)
    for result in (planned.plan, done, status, verified, report):
        assert len(repr(result)) < 400
        assert result._repr_html_().startswith("<table>")

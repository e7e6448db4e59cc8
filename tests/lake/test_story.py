"""The daily routine of a lake: what `status`, `apply` and `verify` say when things go wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

import modcrypt as mc
from tests.support.cli.program import Answer, run
from tests.support.lake_folder import make_lake, order_table, trust_lake, write_day


def last_line(answer: Answer) -> str:
    return answer.stdout.splitlines()[-1]


def test_a_lake_from_its_first_day_to_an_attack(tmp_path: Path) -> None:
    folder = tmp_path
    make_lake(folder, days=5, files=10)
    trust_lake(folder)
    orders = folder / "orders"

    # Day one: 50 plaintext files.
    assert last_line(run(folder, "status")) == "orders: 50 files: 50 plaintext"
    assert run(folder, "verify").returncode == 1
    answer = run(folder, "apply")
    assert (answer.returncode, last_line(answer)) == (
        0, "orders: 50 encrypted (0 of 50 files were as declared)",
    )  # fmt: skip
    assert run(folder, "verify").returncode == 0
    assert last_line(run(folder, "status")) == "orders: 50 files: 50 as declared"

    # The next day: ten more.
    write_day(folder, "2026-11-06", 10)
    assert last_line(run(folder, "status")) == "orders: 60 files: 50 as declared, 10 plaintext"
    assert last_line(run(folder, "apply")) == (
        "orders: 10 encrypted (50 of 60 files were as declared)"
    )
    assert last_line(run(folder, "apply")) == "orders: nothing to do (60 of 60 files as declared)"
    since = run(folder, "verify", "--since", "last")
    assert since.returncode == 0
    assert last_line(since).startswith("orders: 10 of 10 files as declared, 50 unchanged")

    # A key is disabled, and enabled again.
    keyring = mc.Keyring(folder / "lake.keyring")
    keyring.disable_key("pii")
    assert last_line(run(folder, "status")).startswith(
        "orders: 60 files: 60 unreadable (60 disabled)"
    )
    assert run(folder, "verify").returncode == 3
    assert run(folder, "apply").returncode == 3
    disabled = json.loads(run(folder, "report", "--json").stdout)
    assert disabled["datasets"][0]["unreadable"] == {"disabled": 60}
    assert {key["master_key_id"]: key["key_state"] for key in disabled["keys"]} == {
        "footer": "enabled", "pii": "disabled",
    }  # fmt: skip
    keyring.enable_key("pii")
    assert run(folder, "verify").returncode == 0

    # Two days exchange a file.
    first, second = (orders / f"day=2026-11-0{day}/part-0.parquet" for day in (1, 2))
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    # A plaintext file appears, and one that is forged under another master key.
    pq.write_table(order_table(), orders / "day=2026-11-03/stray.parquet")
    keyring.create_key("other")
    policy = mc.Policy(footer_key="other", aad_prefix="orders/{path}")
    encryption = mc.KeyTools(keyring).encryption(policy, root=str(orders))
    mc.write_table(order_table(), orders / "day=2026-11-04/forged.parquet", encryption)

    assert last_line(run(folder, "status")) == (
        "orders: 62 files: 58 as declared, 1 plaintext, 1 under keys that are not declared, 2 with "
        "the AAD prefix of another place; 3 not verified since last change"
    )
    verified = run(folder, "verify")
    assert verified.returncode == 1
    for name, word in (
        ("day=2026-11-01/part-0.parquet", "aad-prefix"),
        ("day=2026-11-02/part-0.parquet", "aad-prefix"),
        ("day=2026-11-03/stray.parquet", "plaintext"),
        ("day=2026-11-04/forged.parquet", "key-material"),
    ):
        (line,) = (line for line in verified.stdout.splitlines() if line.startswith(name))
        assert word in line
    report = json.loads(run(folder, "report", "--json").stdout)
    assert {finding["file"]: finding["state"] for finding in report["findings"]} == {
        "day=2026-11-01/part-0.parquet": "misplaced",
        "day=2026-11-02/part-0.parquet": "misplaced",
        "day=2026-11-03/stray.parquet": "plaintext",
        "day=2026-11-04/forged.parquet": "other-keys",
    }
    forged = (orders / "day=2026-11-04/forged.parquet").read_bytes()
    applied = run(folder, "apply")
    assert (applied.returncode, last_line(applied)) == (
        1, "orders: 1 encrypted, 3 refused (58 of 62 files were as declared)",
    )  # fmt: skip
    assert (orders / "day=2026-11-04/forged.parquet").read_bytes() == forged

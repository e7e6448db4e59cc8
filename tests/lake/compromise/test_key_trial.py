"""Each declared master key wraps once on trial before anything is written, former ones never."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.folder_contents import bytes_of
from tests.support.lake_folder import DECLARATION, make_lake

PREVIOUS = '\n[dataset.orders.previous]\nmaster_keys = { gone = "pii", away = "footer" }\n'
MORE = '\n[dataset.more]\nlocation = "more"\nfooter_key = "footer"\ncolumn_keys = { pii = ["a"] }\n'


class TrialClient:
    """A keyring that notes the calls of `wrap` and `unwrap` by master key."""

    def __init__(self, keyring: mc.Keyring) -> None:
        self._keyring = keyring
        self.wraps: Counter[str] = Counter()
        self.unwraps: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keyring, name)

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self.wraps[master_key_id] += 1
        return self._keyring.wrap(key, master_key_id, aad=aad)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.unwraps[master_key_id] += 1
        return self._keyring.unwrap(wrapped, master_key_id, aad=aad)


def open_lake(config: Path) -> tuple[Lake, TrialClient]:
    lake, client = Lake.open(config), TrialClient(mc.Keyring(config.parent / "lake.keyring"))
    lake.__dict__["client"] = client
    return lake, client


@each_case("misspelt", ["footer", "pii", "mail"])
def test_a_misspelt_key_is_an_error_before_anything_is_written(
    tmp_path: Path, misspelt: str
) -> None:
    text = DECLARATION.replace("\npii =", '\nmail = ["mail"]\npii =')
    text = text.replace("{ pii = true }", '"id"').replace('"footer"\n', '"footerx"\n')
    if misspelt != "footer":
        text = text.replace("footerx", "footer").replace(f"\n{misspelt} =", f"\n{misspelt}x =")
    config = make_lake(tmp_path, declaration=text)
    mc.Keyring(tmp_path / "lake.keyring").create_key("mail")
    before = bytes_of(tmp_path / "orders")
    lake, client = open_lake(config)
    with pytest.raises(
        mc.errors.KeyNotFoundError, match=f"{misspelt}x; did you mean {misspelt}\\?$"
    ):
        lake.apply()
    assert bytes_of(tmp_path / "orders") == before
    assert client.wraps[f"{misspelt}x"] == 1


def test_each_key_is_tried_once_and_former_keys_are_not(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    config = make_lake(tmp_path, declaration=f"{DECLARATION}{PREVIOUS}{MORE}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "more/a.parquet")
    lake, client = open_lake(config)
    assert [done.code for done in lake.apply(jobs=1)] == [0, 0]
    # One wrap on trial for the whole lake, then a KEK in each dataset.
    assert client.wraps == {"footer": 1 + 2, "pii": 1 + 2}
    lake, client = open_lake(config)
    assert [done.files for done in lake.apply()] == [[], []]
    assert client.wraps == {}  # nothing is to be written


def test_a_table_is_created_after_one_trial(tmp_path: Path) -> None:
    keyring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    keyring.create_key("sales")
    schema = pa.schema([("id", pa.int64())])
    client = TrialClient(keyring)
    with pytest.raises(mc.errors.KeyNotFoundError, match="sale"):
        iceberg.create_table(tmp_path / "t", schema, client, master_key_id="sale")
    assert (client.wraps, (tmp_path / "t").exists()) == ({"sale": 1}, False)
    iceberg.create_table(tmp_path / "t", schema, client, master_key_id="sales")
    assert client.wraps == {"sale": 1, "sales": 1}

"""The code blocks of the tutorials and the how-to guides run as they are written."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.guide import blocks_of, commands_of, run_guide
from tests.support.kms.azure_stub import VaultStub, client_of, rsa_keys, vault
from tests.support.kms.google_stub import RING, google, google_client
from tests.support.kms.soft_hsm import hsm
from tests.support.paths import ROOT
from tests.support.stories import STORIES

__all__ = ["google", "google_client", "hsm", "rsa_keys", "vault"]  # fixtures

PAGES = {path.stem for path in (ROOT / "docs/how-to").glob("*.md")}
ON_SPARK = {"spark", "spark-clusters"}  # tests/spark runs these, and tutorial-spark.md
SERVICES = {"vault", "aws", "google", "azure", "hsm", "migrate-s3"}
WITH_WARNINGS = {"frames"}  # of other libraries
TUTORIALS = {path.name for path in (ROOT / "docs").glob("tutorial*.md")} - {"tutorial-spark.md"}


@pytest.mark.parametrize("page", sorted(TUTORIALS))
def test_a_tutorial_runs(page: str, tmp_path: Path) -> None:
    run_guide(page, tmp_path)


@each_case("name", sorted(PAGES - ON_SPARK - SERVICES - WITH_WARNINGS - {*STORIES}))
def test_a_guide_runs_alone_in_an_empty_folder(name: str, tmp_path: Path) -> None:
    run_guide(f"how-to/{name}.md", tmp_path)


@each_case("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_code_has_at_most_88_columns(page: Path) -> None:
    blocks = blocks_of(str(page.relative_to(ROOT / "docs")))
    code = [block.text for block in blocks if block.language in ("python", "sh", "sql", "toml")]
    code += [
        command
        for block in blocks
        if block.language == "console"
        for command, _ in commands_of(block.text)
    ]
    assert [line for text in code for line in text.splitlines() if len(line) > 88] == []


@each_case("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_what_a_page_cites_exists(page: Path) -> None:
    cited = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())
    assert [path for path in cited if not (ROOT / path).exists()] == []
    for block in blocks_of(str(page.relative_to(ROOT / "docs"))):
        if block.language == "python" and block.title:
            compile(block.text, block.title, "exec")


def test_the_models_for_dbt_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_guide("how-to/dbt.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    mc.Keyring.create("lake.keyring", plaintext=True).create_key("footer")
    for name in ("orders", "totals"):
        policy = (
            f'kms = "file:lake.keyring"\nfooter_key = "footer"\naad_prefix = "{name}/{{path}}"\n'
        )
        Path(f"{name}.toml").write_text(policy)
    rows = pa.table({"country": ["NO", "NO"], "total": [1.0, 2.0]})
    settings = mc.Settings(policy=mc.Policy.load("orders.toml"), root="orders")
    mc.write_dataset(rows, "orders", settings)
    dbt = SimpleNamespace(config=lambda **_: None, ref=lambda name: duckdb.from_arrow(rows))
    orders = runpy.run_path("models/orders.py")["model"](dbt, None)
    assert orders.equals(rows)
    runpy.run_path("models/totals.py")["model"](dbt, None)
    reading = mc.Settings(policy=mc.Policy.load("totals.toml"), root=".")
    assert mc.read_table("totals.parquet", reading).to_pylist() == [{"country": "NO", "total": 3.0}]


@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_the_guide_to_data_frames_runs(tmp_path: Path) -> None:
    run_guide("how-to/frames.md", tmp_path)


def test_the_guide_to_vault_runs(
    bao: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.kms.key_servers import Bao

    assert isinstance(bao, Bao)
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    replace = {"hcvault://vault.example.com/transit": bao.uri(bao.mount())}
    run_guide("how-to/vault.md", tmp_path, replace=replace)


def test_the_guide_to_aws_runs(moto: object, tmp_path: Path) -> None:
    run_guide("how-to/aws.md", tmp_path)


def test_the_guide_to_an_hsm_runs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from tests.support.kms import soft_hsm

    hsm = request.getfixturevalue("hsm")
    replace = {
        "/usr/lib/softhsm/libsofthsm2.so": str(hsm.module),
        '"the PIN"': repr(soft_hsm.PIN),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MODCRYPT_PKCS11_MODULE", "MODCRYPT_PKCS11_PIN"):
            patch.setenv(name, "")  # restores them afterwards
        run_guide("how-to/hsm.md", tmp_path, replace=replace)


def test_the_guide_to_s3_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    from tests.support.object_store import object_store

    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for bucket in ("landing", "lake"):
            store.judge().create_bucket(Bucket=bucket)
        table = pa.table({"name": ["Ada", "Grace"], "ssn": ["123-45", "678-90"]})
        for day in (1, 2):
            with store.arrow().open_output_stream(f"landing/people/day={day}/a.parquet") as out:
                pq.write_table(table, out)
        run_guide("how-to/migrate-s3.md", tmp_path)


def test_the_guide_to_google_runs(
    google_client: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "modcrypt.kms.services.gcp.kms_v1.KeyManagementServiceClient", lambda **_: google_client
    )
    replace = {"projects/p-1/locations/europe-west3/keyRings/lake": RING}
    run_guide("how-to/google.md", tmp_path, replace=replace)


def test_the_guide_to_azure_runs(
    vault: VaultStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modcrypt.kms.services.azure.KeyClient", lambda *_, **__: client_of(vault))
    run_guide("how-to/azure.md", tmp_path)

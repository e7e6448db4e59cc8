"""The code blocks of the tutorial and the how-to guides run as they are written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.guide import blocks_of, run_guide
from tests.support.kms.azure_stub import VaultStub, client_of, rsa_keys, vault
from tests.support.kms.google_stub import RING, google, google_client
from tests.support.kms.soft_hsm import hsm
from tests.support.paths import ROOT
from tests.support.stories import STORIES

__all__ = ["google", "google_client", "hsm", "rsa_keys", "vault"]  # fixtures

# Guides that other tests run, because they need Spark or go on with the README's names.
ELSEWHERE = {
    "any-file", "command-line", "iceberg", "key-services", "lake", "plaintext-found", "python",
    "recipients", "seals", "signed-files", "spark",
}  # fmt: skip
ALONE = (
    "nightly-verification",
    "evidence",
    "from-pyarrow",
    "from-parquet-java",
    "leaks",
)
SERVICES = {"vault", "aws", "google", "azure", "hsm", "migrate-s3"}
DATA = {"frames", "partner"}


def test_every_guide_is_run() -> None:
    guides = {path.stem for path in (ROOT / "docs/how-to").glob("*.md")}
    assert guides == ELSEWHERE | {*ALONE, *STORIES} | SERVICES | DATA


def test_the_tutorial_runs(tmp_path: Path) -> None:
    run_guide("tutorial.md", tmp_path)


@pytest.mark.parametrize("name", [*ALONE, "partner"])
def test_a_guide_runs(name: str, tmp_path: Path) -> None:
    run_guide(f"how-to/{name}.md", tmp_path)


@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_the_guide_to_data_frames_runs(tmp_path: Path) -> None:
    run_guide("how-to/frames.md", tmp_path)


def test_the_ray_example_is_python(tmp_path: Path) -> None:
    (script,) = [block for block in blocks_of("how-to/frames.md") if block.title]
    compile(script.text, "ray_example.py", "exec")


def test_the_guide_to_vault_runs(
    bao: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.kms.key_servers import Bao

    assert isinstance(bao, Bao)
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    mount, signing = bao.mount(), "keys/lake-writer"
    bao.judge().write(f"{mount}/{signing}", type="ed25519")
    engine = "hcvault://vault.example.com/transit"
    replace = {f"{engine}/{signing}": bao.uri(f"{mount}/{signing}"), engine: bao.uri(mount)}
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

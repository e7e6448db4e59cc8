"""Build and check spec-vectors/: each case has one fault, which its name describes.

    python tools/vectors.py build    writes everything but the plaintext inputs
    python tools/vectors.py check    rebuilds in memory, compares byte for byte, and has the
                                     independent verifier agree on every case
    python tools/vectors.py inputs   writes the plaintext inputs (once: PyArrow's bytes change)

Expected error codes are written by hand, from the format and the reader's policy. The cases are in
tools/module_vectors.py, tools/file_vectors.py and tools/ags1_vectors.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

from modcrypt.module_ids import ModuleType
from modcrypt.runtime.code_form import code_form
from tools import (
    ags1_vectors,
    ledger_vectors,
    pkmt1_vectors,
    seal_vectors,
    signature_vectors,
    verify_pme,
    verify_seal,
    write_scenarios,
)
from tools.file_vectors import parquet_cases
from tools.module_vectors import KEYS, aad_cases, ctr_cases, gcm_cases
from tools.vector_files import (
    BASES,
    BY_NAME,
    GCM_V1,
    aad_prefix_of,
    encrypt_base,
    plain,
    write_inputs,
)
from tools.vector_patches import FOLDER, apply
from tools.verify_pme import Module, VerifyError

Json = dict[str, Any]


def load(name: str) -> list[Json]:
    """Read the cases of one committed file."""
    cases: list[Json] = json.loads((FOLDER / name).read_text())["cases"]
    return cases


def case_bytes(made: Json) -> bytes:
    """Return the file of a committed Parquet case."""
    return apply((FOLDER / "parquet" / made["file"]).read_bytes(), made["patches"])


def verdict(made: Json, data: bytes) -> VerifyError | list[Module]:
    """Return the independent verifier's result for the file of a Parquet case."""
    keys, properties = made["keys"], made["properties"]
    lenient = properties.get("on_missing_key") == "drop" or not properties.get(
        "check_footer_integrity", True
    )
    try:
        return verify_pme.verify(
            data,
            KEYS[keys["footer"]] if keys["footer"] else None,
            {path: KEYS[key] for path, key in keys["columns"].items()},
            aad_prefix_of(properties),
            accept_algorithms=tuple(properties.get("algorithms", [GCM_V1])),
            partial=lenient,
        )
    except VerifyError as error:
        return error


# What modcrypt can be asked to let pass, and the verifier always refuses.
STRICTER = {"signed-footer-unchecked": "signature"}
# What only reading an unencrypted page reveals, which the verifier does not.
BEYOND_MODULES = {"column-declared-plaintext": "ok"}


def disagreement(made: Json, data: bytes) -> str | None:
    """Return how the independent verifier differs from a case's expectation; None if it agrees."""
    said = verdict(made, data)
    word = said.word if isinstance(said, VerifyError) else "ok"
    expected = (STRICTER | BEYOND_MODULES).get(made["id"], made["expect"])
    if word != expected:
        return f"{made['id']}: expected {expected}, the verifier says {word} ({said})"
    module = (made["error"] or {}).get("module")
    if module is not None and isinstance(said, VerifyError):
        place = tuple(module.get(name) for name in ("row_group", "column", "page"))
        if said.address != (ModuleType[module["type"]].value, *place):
            return f"{made['id']}: expected {module}, the verifier names {said.address}"
    return None


def seal_cases() -> list[Json]:
    """Return the cases of both versions of seals."""
    return [*seal_vectors.cases(), *ledger_vectors.cases()]


def documents() -> dict[str, bytes]:
    """Return all generated files under spec-vectors/, by path."""
    from tools import unknown_field_vectors as unknown

    def text(about: str, cases: Iterator[Json] | list[Json]) -> bytes:
        listed = list(cases)
        ids = Counter(made["id"] for made in listed)
        assert max(ids.values()) == 1, ids.most_common(1)
        return (json.dumps({"about": about, "cases": listed}, indent=1) + "\n").encode()

    keys = {name: key.hex() for name, key in KEYS.items()}
    return {
        "keys.json": (json.dumps(keys, indent=1) + "\n").encode(),
        "aad.json": text("AADs of all module types, PME 4.4.2", aad_cases()),
        "gcm.json": text("GCM modules, PME 5.1", gcm_cases()),
        "ctr.json": text("CTR modules, PME 4.2.2 and 5.1", ctr_cases()),
        "parquet/cases.json": text("Encrypted files, PME 5", parquet_cases()),
        "parquet/unknown-fields.json": text(
            "Thrift fields that no IDL has: which files and copies keep them", unknown.cases()
        ),
        **{f"parquet/base/{base.name}.parquet": encrypt_base(base.name) for base in BASES},
        "write.json": text(
            "Scenarios: what writers are asked to make", write_scenarios.scenarios()
        ),
        "signatures/cases.json": text("Signed files", signature_vectors.cases()),
        "seals/cases.json": text("Seals of folders and tables", seal_cases()),
        **pkmt1_vectors.documents(),
        **ags1_vectors.documents(),
    }


def build() -> int:
    for path, content in documents().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_bytes(content)
    return 0


def check() -> int:
    from tools import unknown_field_vectors as unknown

    expected = documents()
    problems = [
        f"spec-vectors/{path} differs from what tools/vectors.py builds"
        for path, content in expected.items()
        if not (FOLDER / path).is_file() or (FOLDER / path).read_bytes() != content
    ]
    kept = {"README.md", unknown.PLAIN, *(f"parquet/plain/{base.plain}.parquet" for base in BASES)}
    kept.add("parquet/plain/many.parquet")
    # Other writers made the first two, or PyArrow, whose bytes change; fresh randomness is in the
    # others.
    for fixed in ("by-writer", "writers", "recipients", "signatures", "seals"):
        files = (path for path in (FOLDER / fixed).rglob("*") if path.is_file())
        kept |= {str(path.relative_to(FOLDER)) for path in files}
    found = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file()}
    problems += [f"spec-vectors/{path} is built by nobody" for path in found - kept - {*expected}]
    cases = json.loads(expected["parquet/cases.json"])["cases"]
    for made in cases:
        base = made["file"].removeprefix("base/").removesuffix(".parquet")
        whole = encrypt_base(base) if base in BY_NAME else plain(Path(made["file"]).stem)
        if difference := disagreement(made, apply(whole, made["patches"])):
            problems.append(difference)
    problems += ags1_vectors.problems()
    problems += filter(None, map(verify_seal.find_disagreement, seal_cases()))
    source = (FOLDER / unknown.PLAIN).read_bytes()
    problems += filter(None, (unknown.problem(made, source, KEYS) for made in unknown.cases()))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(
        f"{len(expected)} files, {len(cases)} Parquet cases, {len(ags1_vectors.cases())} AGS1 "
        f"cases, {len(pkmt1_vectors.cases())} PKMT1 cases, {len(problems)} problems"
    )
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("build", "check", "inputs"))
    command = parser.parse_args().command
    if code_form() == "compiled":  # which ignores the changes that make files of other writers
        parser.error("vectors are built by interpreted code; run `make interpreted` first")
    if command == "inputs":
        write_inputs()
        return 0
    return build() if command == "build" else check()


if __name__ == "__main__":
    sys.exit(main())

"""Delete erased files, after a proof that none of their keys opens.

Files go one by one, each after its external key material: a run that is killed leaves erased files
that the next run deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modcrypt.io.places import Place
from modcrypt.jobs.shredding.file_shredding import stores_of
from modcrypt.jobs.shredding.proof import Proof, prove_shredded
from modcrypt.kms.key_tools import KeyTools
from modcrypt.lake.applying.application import AppliedFile
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import FileState

_NO_PROOF = "nothing proves that its keys are gone, here or in a copy beside it; see shred --prove"


def remove_erased(
    states: Sequence[FileState], policies: DatasetPolicies, jobs: int | None = None
) -> Iterator[AppliedFile]:
    """Delete erased files; yield the result of each: "removed" with its SHA-256, or "refused".

    If anything of one still opens, also in a copy beside it, nothing is deleted.

    Args:
        states: Erased files, as `judge_state` found them.
    """
    if not states:
        return
    places = [policies.place_of(state.path) for state in states]
    stamps = [place.stamp() for place in places]
    # Tools that accept any master key: a refusal must be that of the key service.
    tools = KeyTools(policies.client, kms_aad=policies.dataset.members.get("kms_aad", ""))
    proof = prove_shredded(
        [place.path for place in places], tools, everything=True, jobs=jobs,
        filesystem=policies.root.place.filesystem,
    )  # fmt: skip
    hashes = {file.path: file.sha256 for file in proof.files if file.sha256}
    for state, place, stamp in zip(states, places, stamps, strict=True):
        if not proof.ok or place.listed_name not in hashes:
            message = _explain(proof, place)
            yield AppliedFile(path=state.path, result="refused", message=message, code=1)
            continue
        try:
            place.check_unchanged(stamp)
            for each in (*stores_of(place), place):
                each.remove()
        except Exception as error:  # the run continues with the other files
            yield AppliedFile.of_failure(state.path, error)
            continue
        message = f"SHA-256 {hashes[place.listed_name]}, {state.message}"
        yield AppliedFile(path=state.path, result="removed", message=message)


def _explain(proof: Proof, place: Place) -> str:
    open_ends = [*proof.still_readable, *proof.unknown]
    about = next((key for file, key in open_ends if file.path == place.listed_name), None)
    if about is not None:
        return f"{about.key} is {about.state}: {about.why}"
    if open_ends:
        file, key = open_ends[0]
        return f"{_NO_PROOF}: {key.key} of {file.path} is {key.state}"
    return _NO_PROOF

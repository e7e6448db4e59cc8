"""The public names of the package, and the modules that define them."""

from modcrypt.lake.applying.application import LakeApplication as LakeApplication
from modcrypt.lake.dataset import LakeDataset as LakeDataset
from modcrypt.lake.evidence.events import EvidenceCheck as EvidenceCheck
from modcrypt.lake.evidence.events import EvidenceEvent as EvidenceEvent
from modcrypt.lake.files.file_states import FileState as FileState
from modcrypt.lake.lake import Lake as Lake
from modcrypt.lake.reports.key_impact import DatasetImpact as DatasetImpact
from modcrypt.lake.reports.key_path import KeyStep as KeyStep
from modcrypt.lake.reports.lake_report import LakeReport as LakeReport
from modcrypt.lake.status import DatasetStatus as DatasetStatus
from modcrypt.lake.verification.results import LakeVerification as LakeVerification

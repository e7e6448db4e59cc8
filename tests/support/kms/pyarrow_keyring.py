"""PyArrow's key tools on the master keys of a keyring."""

from __future__ import annotations

import pyarrow.fs as pafs
import pyarrow.parquet.encryption as pe

from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.kms.memory_kms import PyArrowKms

ARROW_KMS = PyArrowKms(masters={"footer": FOOTER_KEY, "pii": COLUMN_KEY})
FACTORY = pe.CryptoFactory(lambda configuration: ARROW_KMS)
LOCAL = pafs.LocalFileSystem()

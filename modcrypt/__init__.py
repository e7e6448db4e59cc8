"""Parquet Modular Encryption and AGS1 in Python: encrypted files for data lakes.

`__init__.pyi` lists the public names; each is imported on first use. Results, errors and what few
callers need are in packages: `modcrypt.errors`, `modcrypt.jobs`, `modcrypt.kms` and others.
"""

from modcrypt.runtime.lazy_names import attach
from modcrypt.runtime.moved_names import MOVED

__version__ = "1.0.0"
__getattr__, __dir__ = attach(__name__, MOVED)

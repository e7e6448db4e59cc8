"""Parquet Modular Encryption and AGS1 in Python: encrypted files for data lakes.

`__init__.pyi` lists the public names; each is imported on first use.
"""

from modcrypt.runtime.lazy_names import attach

__version__ = "0.1.0"
__getattr__, __dir__ = attach(__name__)

"""Keys per subject: erase one person from encrypted files, by removing one key.

`__init__.pyi` lists the public names; each is imported on first use.
"""

from modcrypt.runtime.lazy_names import attach

__getattr__, __dir__ = attach(__name__)

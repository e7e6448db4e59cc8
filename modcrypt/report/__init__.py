"""Results as text and as pages of HTML.

`__init__.pyi` lists the public names; each is imported on first use.
"""

from modcrypt.runtime.lazy_names import attach

__getattr__, __dir__ = attach(__name__)

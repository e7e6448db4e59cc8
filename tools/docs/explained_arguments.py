"""An extension of griffe: arguments that a class takes from the table of settings, explained."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.kms.policy import Policy
from modcrypt.kms.settings import Settings

_EXPLAINED = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in (KeyPolicy, Policy, Settings)}


class ExplainedArguments(griffe.Extension):
    """Show docstrings as they are at run time, when `explain_arguments` has completed them."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Replace the docstring of a class whose arguments are settings."""
        if cls.path in _EXPLAINED and cls.docstring is not None:
            cls.docstring.value = inspect.getdoc(_EXPLAINED[cls.path]) or ""

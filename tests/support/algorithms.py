"""The names of both algorithms."""

from __future__ import annotations

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"

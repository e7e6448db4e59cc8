"""Manifests that a rotation or a repair writes again."""

"""Keys from key services: envelope encryption as the key tools of Parquet do it (PKMT1)."""

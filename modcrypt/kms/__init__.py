"""Keys from key services: envelope encryption in the format of Parquet's key tools (PKMT1)."""

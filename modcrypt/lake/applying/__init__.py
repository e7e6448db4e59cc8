"""The plan of `apply`, and how it is carried out."""

"""The declaration of a lake, `modcrypt.toml`: its form, its mistakes and where it is found."""

"""One read of an encrypted file: its request, what it decrypts, and what it decodes."""

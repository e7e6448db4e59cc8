"""Find values of encrypted columns outside the ciphertext, beside the files."""

"""Crypto-shredding: choose the keys of data, remove them, and prove that nothing opens it."""

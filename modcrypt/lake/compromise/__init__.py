"""The answer to a leak: which files a compromised master key opens, and what is known of each."""

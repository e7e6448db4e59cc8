"""The files of a dataset: which there are, the keys declared for each, and their states."""

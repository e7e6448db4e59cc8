"""The record of evidence of a lake: what was done and found, when and by whom."""

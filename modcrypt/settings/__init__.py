"""The settings of encryption, each declared once; files, options and documentation follow."""

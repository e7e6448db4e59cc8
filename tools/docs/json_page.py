"""The reference page of the JSON that the command line prints."""


def make_json_page() -> str:
    """Return the page as Markdown."""
    return "# Output as JSON\n"

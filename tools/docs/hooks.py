"""Hooks of mkdocs: add pages that lie elsewhere or are made from the code, and adjust links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.conformance import page as results_page
from tools.docs import tables
from tools.docs.command_page import INDEX, make_command_navigation, make_command_pages
from tools.docs.json_page import make_json_page
from tools.docs.limits_page import make_limits_page
from tools.docs.links import ROOT, Sources, adjust_links
from tools.docs.notebook_pages import make_notebook_page

# Pages of the site that are files of the repository outside docs/.
COPIES = {
    "index.md": "README.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/security.md": "SECURITY.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/conduct.md": "CODE_OF_CONDUCT.md",
    "repository/spec-vectors.md": "spec-vectors/README.md",
    "repository/joining.md": "tools/conformance/JOINING.md",
    "repository/protocol.md": "tools/conformance/PROTOCOL.md",
    "repository/findings.md": "tools/conformance/FINDINGS.md",
}

RESULTS = "reference/conformance-results.html"

MADE = {
    "reference/json.md": make_json_page,
    "reference/limits.md": make_limits_page,
}


def on_config(config: Any) -> Any:
    """Add the pages of commands to the navigation."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    place = reference.index({"Command line": INDEX})
    reference[place] = {"Command line": make_command_navigation()}
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that docs/ does not contain."""
    for uri, source in COPIES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    made = {uri: make() for uri, make in MADE.items()} | make_command_pages()
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=make_notebook_page(path)))
    results = results_page.make_page(ROOT / "tools/conformance/results")
    files.append(File.generated(config, RESULTS, content=results))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Draw the page's tables, and point links between files of the repository to their pages."""
    uri, markdown = page.file.src_uri, tables.fill(markdown)
    if uri == "reference/errors.md":  # what a user with an error message looks for
        page.meta["search"] = {"boost": 4}
    if uri == "reference/conformance.md":
        link = f"[Each case, with what each implementation answered]({Path(RESULTS).name})"
        markdown = markdown.replace("\n\n", f"\n\n{link} is a page of its own.\n", 1)
    pages = {f"docs/{file.src_uri}": file.src_uri for file in files}
    pages |= {source: copy for copy, source in COPIES.items()}
    if not uri.startswith("notebooks/"):  # whose pages let you download them
        pages |= {
            path: f"{Path(page).with_suffix('.md')}"
            for path, page in pages.items()
            if path.endswith(".ipynb")
        }
    return adjust_links(markdown, Sources(uri, Path(COPIES.get(uri, f"docs/{uri}")), pages))

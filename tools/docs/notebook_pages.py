"""Notebooks as pages of the website, and their execution.

Run `python -m tools.docs.notebook_pages` to execute the notebooks and store their outputs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tools.docs.links import ROOT

NOTEBOOKS = ROOT / "docs/notebooks"


def make_notebook_page(path: Path) -> str:
    """Return a notebook with its stored outputs as Markdown."""
    notebook = nbformat.read(path, as_version=4)
    note = f"\n[Download this page as a notebook]({path.name}), and open it with Jupyter.\n"
    first, *rest = (_describe_cell(cell) for cell in notebook.cells)
    return "\n".join([first, note, *rest])


def _describe_cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return f"{cell.source}\n"
    parts = [f"```python\n{cell.source}\n```\n"]
    for output in cell.outputs:
        data = output.get("data", {})
        if "text/html" in data:
            parts.append(f'<div class="output" markdown="0">\n{data["text/html"]}\n</div>\n')
        else:
            text = output.get("text") or data.get("text/plain", "")
            parts.append(f"```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def execute(path: Path) -> Any:
    """Return a notebook executed from its beginning, in an empty folder; it must not fail."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of the execution
    return notebook


if __name__ == "__main__":
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(execute(file), file)

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fermata import Cluster

NOTEBOOK = Path(__file__).parents[1] / "examples/words.ipynb"


def run(tmp_path: Path, place: str) -> str:
    """Executes the notebook and returns what it shows."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    first = notebook.cells[1]
    assert "cluster = None" in first.source
    first.source = first.source.replace("cluster = None", f"cluster = {place}")
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(shown)


def check(shown: str) -> None:
    assert "'the': 3" in shown and "'dog': 2" in shown
    assert "\n3\n" in shown
    assert re.search(r"0 +the +3\n", shown)
    assert "ValueError: cannot read" in shown


def test_notebook_runs_locally(tmp_path: Path) -> None:
    check(run(tmp_path, "None"))


def test_notebook_runs_on_a_cluster(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERMATA_GATEWAY", cluster.gateway.address)
    header = cluster.gateway._headers.get("Authorization")
    if header:
        monkeypatch.setenv("FERMATA_TOKEN", header.split(" ", 1)[1])
    assert os.environ["FERMATA_GATEWAY"]
    check(run(tmp_path, "fermata.Cluster()"))

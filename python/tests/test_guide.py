"""Runs the Python blocks of docs/guide/python.md, in their order, on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fermata import Cluster

PAGE = Path(__file__).parents[2] / "docs/guide/python.md"


def test_blocks_of_the_guide_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if not PAGE.exists():
        pytest.skip("the guide is in a checkout of Fermata only")
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERMATA_GATEWAY", cluster.gateway.address)
    header = cluster.gateway._headers.get("Authorization")
    if header:
        monkeypatch.setenv("FERMATA_TOKEN", header.split(" ", 1)[1])
    Path("books").mkdir()
    Path("books/text").write_text("the cat\nand the dog\nThe end\n")
    Path("names.txt").write_text("cat dog")
    for path in ("/counts", "/numbers.csv"):
        if cluster.files.exists(path):
            cluster.files.rm(path, recursive=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        shown = capsys.readouterr().out
    assert shown.count("the 2\n") == 2
    assert "ValueError: invalid literal" in shown
    assert dict(names["frequent"])[-2 - 1, "the"] == 3
    assert dict(names["found"]) == {"cat": 1, "dog": 1}
    assert names["frame"]["n"].tolist() == [1, 2]
    assert "/counts/_SUCCESS" in names["names"]

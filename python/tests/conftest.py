"""Tests that need a cluster use the one of the working folder or of FERMATA_GATEWAY.

Without one they are skipped; with FERMATA_TEST_CLUSTER=1 they fail instead.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import fermata

# A program that was started in the background of a script ignores Ctrl-C, and so do those that it
# starts, unless it handles it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster() -> fermata.Cluster:
    try:
        found = fermata.Cluster()
        found.api("GET", "/nodes")
    except fermata.GatewayError as error:
        if os.environ.get("FERMATA_TEST_CLUSTER"):
            raise
        pytest.skip(str(error))
    return found


@pytest.fixture
def folder(cluster: fermata.Cluster) -> Iterator[str]:
    """A new folder in the cluster."""
    path = f"/tmp/test-{uuid.uuid4()}"
    cluster.files.mkdir(path)
    yield path
    cluster.files.rm(path, recursive=True)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A local folder with text."""
    path = tmp_path / "books"
    (path / "more").mkdir(parents=True)
    (path / "one.txt").write_text("the cat and the dog\nThe end\n")
    (path / "more" / "two.txt").write_bytes(b"a dog\r\n\r\nand a b\xc3\xbcrd\xff")
    (path / "_skipped").write_text("never read")
    return path


WORDS = {
    "the": 3,
    "cat": 1,
    "and": 2,
    "dog": 2,
    "end": 1,
    "a": 2,
    "bürd\N{REPLACEMENT CHARACTER}": 1,
}

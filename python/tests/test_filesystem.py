from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from fermata import Cluster, FermataFileSystem

MIB = 1 << 20


@pytest.fixture
def options(cluster: Cluster) -> dict[str, str]:
    """How a URL finds the cluster of the test."""
    found = {"address": cluster.gateway.address}
    header = cluster.gateway._headers.get("Authorization")
    if header:
        found["token"] = header.split(" ", 1)[1]
    return found


def test_protocol_is_registered(cluster: Cluster, options: dict[str, str], folder: str) -> None:
    address = options.pop("address")
    with fsspec.open(f"fermata://{address}{folder}/x", "wt", **options) as file:
        file.write("text")
    fs, path = fsspec.core.url_to_fs(f"fermata://{address}{folder}/x", **options)
    assert isinstance(fs, FermataFileSystem) and path == f"{folder}/x"
    assert cluster.files.cat(f"{folder}/x") == b"text"


def test_files_are_written_and_read(cluster: Cluster, folder: str, tmp_path: Path) -> None:
    fs, data = cluster.files, os.urandom(3 * MIB + 17)
    path = f"{folder}/a b+ä%/x"
    with fs.open(path, "wb") as file:
        for at in range(0, len(data), 100_000):
            file.write(data[at : at + 100_000])
        assert not fs.exists(path), "a file appears when it is complete"
    assert fs.cat(path) == data and fs.info(path)["size"] == len(data)
    with fs.open(path, "rb", block_size=MIB) as file:
        file.seek(MIB - 5)
        assert file.read(10) == data[MIB - 5 : MIB + 5]
        file.seek(-3, 2)
        assert file.read() == data[-3:]
    assert fs.cat_file(path, -10, None) == data[-10:]
    with fs.open(path, "ab") as file:
        file.write(b"more")
    assert fs.cat(path) == data + b"more"
    fs.get(path, str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == data + b"more"
    with pytest.raises(FileExistsError):
        fs.open(path, "xb")
    with pytest.raises(RuntimeError), fs.open(f"{folder}/broken", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert not fs.exists(f"{folder}/broken")
    with fs.transaction:
        with fs.open(f"{folder}/t", "wb") as file:
            file.write(b"1")
        assert not fs.exists(f"{folder}/t")
    assert fs.cat(f"{folder}/t") == b"1"


def test_folders(cluster: Cluster, folder: str, books: Path) -> None:
    fs = cluster.files
    fs.put(str(books), f"{folder}/books", recursive=True)
    names = [f"{folder}/books/{name}" for name in ("_skipped", "more/two.txt", "one.txt")]
    assert fs.find(f"{folder}/books") == names
    assert fs.glob(f"{folder}/books/*.txt") == names[2:]
    assert fs.isdir(f"{folder}/books") and fs.isfile(names[0])
    fs.cp(f"{folder}/books", f"{folder}/copy", recursive=True)
    assert fs.cat(f"{folder}/copy/one.txt") == (books / "one.txt").read_bytes()
    assert fs.checksum(names[2]) == fs.checksum(f"{folder}/copy/one.txt")
    fs.mv(f"{folder}/copy/one.txt", f"{folder}/copy/three.txt")
    assert fs.ls(f"{folder}/copy/three.txt", detail=False) == [f"{folder}/copy/three.txt"]
    assert fs.modified(names[0]).tzinfo is not None
    with pytest.raises(OSError):
        fs.rm(f"{folder}/copy")
    fs.rm(f"{folder}/copy", recursive=True)
    for call in (
        lambda: fs.rm(f"{folder}/copy"),
        lambda: fs.info(f"{folder}/copy"),
        lambda: fs.open(f"{folder}/copy"),
        lambda: fs.ls(f"{folder}/copy"),
        lambda: fs.mv(f"{folder}/copy", f"{folder}/other"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{folder}/books")
    with pytest.raises(IsADirectoryError):
        fs.open(f"{folder}/books")
    with pytest.raises(FileExistsError):
        fs.mv(names[0], names[2])


def test_long_folders_are_listed_in_pages(cluster: Cluster, folder: str) -> None:
    names = [f"{folder}/{number:04}" for number in range(1001)]
    for name in names:
        cluster.gateway.files("PUT", "MKDIRS", name)
    assert cluster.files.ls(folder, detail=False) == names


def test_pandas_reads_and_writes(options: dict[str, str], folder: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"word": ["a", "b"], "count": [1, 2]})
    url = f"fermata://{folder}/words"
    frame.to_csv(f"{url}.csv", index=False, storage_options=options)
    assert pandas.read_csv(f"{url}.csv", storage_options=options).equals(frame)
    pytest.importorskip("pyarrow")
    frame.to_parquet(f"{url}.parquet", storage_options=options)
    assert pandas.read_parquet(f"{url}.parquet", storage_options=options).equals(frame)


def test_pyarrow_reads_and_writes(cluster: Cluster, folder: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    table = pyarrow.table({"n": list(range(1000)), "even": [n % 2 == 0 for n in range(1000)]})
    pyarrow.parquet.write_table(table, f"{folder}/t.parquet", filesystem=cluster.files)
    assert pyarrow.parquet.read_table(f"{folder}/t.parquet", filesystem=cluster.files).equals(table)
    pyarrow.parquet.write_to_dataset(
        table, f"{folder}/set", partition_cols=["even"], filesystem=cluster.files
    )
    found = pyarrow.dataset.dataset(f"{folder}/set", filesystem=cluster.files, partitioning="hive")
    assert found.count_rows() == 1000


def test_dask_reads_and_writes(options: dict[str, str], folder: str) -> None:
    dask_frames = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": range(100)})
    url = f"fermata://{folder}/frames"
    frames = dask_frames.from_pandas(frame, npartitions=4)
    frames.to_csv(f"{url}/*.csv", index=False, storage_options=options)
    read = dask_frames.read_csv(f"{url}/*.csv", storage_options=options)
    assert int(read["n"].sum().compute()) == frame["n"].sum()
    frames.to_parquet(f"{url}-parquet", storage_options=options)
    assert len(dask_frames.read_parquet(f"{url}-parquet", storage_options=options)) == 100

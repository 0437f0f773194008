"""Uses a gateway with the packages hdfs and fsspec of PyPI, unchanged.

clients.py all URL TOKEN            every operation, with both
clients.py faults URL TOKEN STOP    writes and reads files until the file STOP exists
"""

import os
import posixpath
import sys
import tempfile

import fsspec
import hdfs
import requests
from hdfs.util import HdfsError
from urllib.parse import urlsplit

MIB = 1 << 20


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def refused(exception, call):
    try:
        call()
    except HdfsError as error:
        assert error.exception == exception, (exception, error.exception, error)
        return
    raise AssertionError(f"not refused with {exception}")


def raises(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def with_hdfs(url, token):
    client = hdfs.TokenClient(url, token)
    client.makedirs("/py/hdfs", permission="750")
    assert client.status("/py/hdfs")["permission"] == "750"
    path, data = "/py/hdfs/a b+ä%", os.urandom(3 * MIB + 17)
    with client.write(path) as writer:
        for at in range(0, len(data), 100_000):
            writer.write(data[at : at + 100_000])
    status = client.status(path)
    assert status["length"] == len(data) and status["type"] == "FILE", status
    with client.read(path) as reader:
        assert reader.read() == data
    with client.read(path, chunk_size=65_536) as reader:
        assert b"".join(reader) == data
    for offset, length in [(0, 1), (MIB - 5, 10), (MIB, MIB), (len(data) - 3, 100), (len(data), 5)]:
        with client.read(path, offset=offset, length=length) as reader:
            assert reader.read() == data[offset : offset + length], (offset, length)
    refused("IOException", lambda: client._open(path, offset=len(data) + 1))

    # Writes that replace, append, or are refused.
    refused("FileAlreadyExistsException", lambda: client.write(path, data=b"x"))
    client.write(path, data=b"first", overwrite=True, replication=1, blocksize=MIB, permission="600")
    status = client.status(path)
    assert (status["replication"], status["blockSize"], status["permission"]) == (1, MIB, "600"), status
    client.write(path, data=b", second", append=True)
    with client.read(path) as reader:
        assert reader.read() == b"first, second"
    sum_ = client.checksum(path)
    assert sum_ == {"algorithm": "COMPOSITE-CRC32C", "bytes": f"{crc32c(b'first, second'):08x}", "length": 4}
    refused("FileNotFoundException", lambda: client.write("/py/hdfs/none", data=b"x", append=True))
    refused("FileAlreadyExistsException", lambda: client.write("/py/hdfs", data=b"x", overwrite=True))

    # Attributes.
    client.set_permission(path, "640")
    client.set_replication(path, 2)
    client.set_times(path, modification_time=1_234_567_890_123)
    status = client.status(path)
    assert (status["permission"], status["replication"]) == ("640", 2), status
    assert status["modificationTime"] == 1_234_567_890_123, status
    refused("IOException", lambda: client.set_times(path, access_time=1))
    client.set_owner(path, owner="bob", group="staff")
    status = client.status(path)
    assert (status["owner"], status["group"]) == ("bob", "staff"), status

    # Listings.
    for number in range(3):
        client.write(f"/py/hdfs/many/{number}", data=b"x" * number)
    assert client.list("/py/hdfs/many") == ["0", "1", "2"]
    names = [(name, status["length"]) for name, status in client.list("/py/hdfs/many", status=True)]
    assert names == [("0", 0), ("1", 1), ("2", 2)], names
    walked = list(client.walk("/py/hdfs"))
    assert walked[0] == ("/py/hdfs", ["many"], ["a b+ä%"]), walked
    content = client.content("/py/hdfs")
    assert (content["fileCount"], content["directoryCount"]) == (4, 2), content
    assert content["length"] == len("first, second") + 3 and content["quota"] == -1, content
    refused("FileNotFoundException", lambda: client.list("/py/none"))
    assert client.status("/py/none", strict=False) is None

    # Renames and deletes.
    client.rename("/py/hdfs/many/2", "/py/hdfs/many/3")
    assert client.list("/py/hdfs/many") == ["0", "1", "3"]
    client.makedirs("/py/hdfs/into")
    client.rename("/py/hdfs/many/3", "/py/hdfs/into")
    assert client.list("/py/hdfs/into") == ["3"]
    raises(HdfsError, lambda: client.rename("/py/hdfs/many/0", "/py/hdfs/many/1"))
    raises(HdfsError, lambda: client.rename("/py/none", "/py/other"))
    refused("PathIsNotEmptyDirectoryException", lambda: client.delete("/py/hdfs/many"))
    assert client.delete("/py/hdfs/many", recursive=True) is True
    assert client.delete("/py/hdfs/many") is False
    client.delete("/py/hdfs/into/3", skip_trash=False)
    assert client.list("/py/hdfs/into") == []

    # What the file system does not have.
    refused("UnsupportedOperationException", lambda: client.acl_status(path))
    refused("UnsupportedOperationException", lambda: client.create_snapshot("/py"))

    # Another user has fewer rights.
    bob = hdfs.TokenClient(url, token, proxy="bob")
    refused("AccessControlException", lambda: bob.write("/py/hdfs/b", data=b"x"))
    refused("AccessControlException", lambda: bob.list("/py/hdfs"))
    raises(HdfsError, lambda: hdfs.TokenClient(url, token + "0").status("/"))
    raises(HdfsError, lambda: hdfs.InsecureClient(url, user="bob").status("/"))

    # Folders, with several threads.
    with tempfile.TemporaryDirectory() as local:
        files = {posixpath.join(f"d{at % 3}", f"f{at}"): os.urandom(at * 50_000) for at in range(12)}
        for name, data in files.items():
            os.makedirs(os.path.join(local, "up", os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(local, "up", name), "wb") as file:
                file.write(data)
        client.upload("/py/up", os.path.join(local, "up"), n_threads=4)
        client.download("/py/up", os.path.join(local, "down"), n_threads=4)
        for name, data in files.items():
            with open(os.path.join(local, "down", name), "rb") as file:
                assert file.read() == data, name


def with_fsspec(url, token):
    host, port = urlsplit(url).hostname, urlsplit(url).port
    fs = fsspec.filesystem("webhdfs", host=host, port=port, token=token, skip_instance_cache=True)
    home = fs.home_directory()
    assert home.startswith("/user/"), home
    assert fs.get_delegation_token() == token
    fs.makedirs("/py/fsspec", exist_ok=True)
    path, data = "/py/fsspec/a b", os.urandom(12 * MIB + 3)
    with fs.open(path, "wb", block_size=5 * MIB) as file:
        file.write(data)
    info = fs.info(path)
    assert (info["size"], info["type"]) == (len(data), "file"), info
    assert fs.cat(path) == data
    for start, end in [(0, 10), (5 * MIB - 3, 5 * MIB + 3), (len(data) - 1, len(data))]:
        assert fs.cat_file(path, start, end) == data[start:end]
    with fs.open(path, "rb", block_size=MIB) as file:
        file.seek(7 * MIB)
        assert file.read(1000) == data[7 * MIB : 7 * MIB + 1000]
        file.seek(-10, 2)
        assert file.read() == data[-10:]
    with fs.open(path, "wb") as file:
        file.write(b"replaced")
    assert fs.cat(path) == b"replaced"
    assert fs.ukey(path)["bytes"] == f"{crc32c(b'replaced'):08x}"
    fs.chmod(path, "604")
    assert fs.info(path)["permission"] == "604"
    fs.set_replication(path, 1)
    assert fs.info(path)["replication"] == 1
    fs.chown(path, owner="bob")
    assert fs.info(path)["owner"] == "bob"
    fs.mv(path, "/py/fsspec/c")
    assert fs.ls("/py/fsspec") == ["/py/fsspec/c"] and not fs.exists(path)
    fs.cp_file("/py/fsspec/c", "/py/fsspec/d")
    assert fs.find("/py/fsspec") == ["/py/fsspec/c", "/py/fsspec/d"]
    assert fs.glob("/py/fsspec/[cx]") == ["/py/fsspec/c"]
    assert fs.content_summary("/py/fsspec")["fileCount"] == 2
    fs.touch("/py/fsspec/empty")
    assert fs.cat("/py/fsspec/empty") == b""
    raises(FileNotFoundError, lambda: fs.info("/py/none"))
    raises(FileNotFoundError, lambda: fs.cat("/py/none"))
    raises(RuntimeError, lambda: fs.rm("/py/fsspec"))
    fs.rm("/py/fsspec", recursive=True)
    assert not fs.exists("/py/fsspec")
    raises(ValueError, lambda: fs.chmod("/py", "rwx"))
    other = fsspec.filesystem("webhdfs", host=host, port=port, token=token + "0", skip_instance_cache=True)
    raises(PermissionError, lambda: other.ls("/"))


def with_faults(url, token, stop):
    """Writes, reads and lists until the file `stop` exists; then checks that every file is whole."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    fs = fsspec.filesystem("webhdfs", host=host, port=port, token=token, skip_instance_cache=True)
    client = hdfs.TokenClient(url, token)
    client.makedirs("/faults")
    written, number = {}, 0
    while not os.path.exists(stop) or number < 3:
        data = os.urandom(2 * MIB + number)
        client.write(f"/faults/{number}", data=data)
        written[str(number)] = data
        if number % 5 == 0:
            with fs.open(f"/faults/s{number}", "wb", block_size=5 * MIB) as file:
                file.write(data)
            written[f"s{number}"] = data
        with client.read(f"/faults/{number}") as reader:
            assert reader.read() == data, number
        assert fs.cat_file(f"/faults/{number}", MIB, MIB + 100) == data[MIB : MIB + 100]
        assert len(client.list("/faults")) == len(written)
        number += 1
        print(number, flush=True)
    for name, data in written.items():
        assert fs.cat(f"/faults/{name}") == data, name


if __name__ == "__main__":
    mode, address, shown = sys.argv[1:4]
    if mode == "faults":
        with_faults(address, shown, sys.argv[4])
    else:
        with_hdfs(address, shown)
        with_fsspec(address, shown)
    print(f"hdfs {hdfs.__version__}, fsspec {fsspec.__version__}, requests {requests.__version__}: done")

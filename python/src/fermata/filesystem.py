"""The file system of a cluster for fsspec: `fermata:///path`, or `fermata://HOST:PORT/path`.

A file that is written is collected in a local temporary file and sent when it is closed. It appears
in the cluster as a whole or not at all, and a program may take any time between two writes.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from fermata.gateway import Gateway

_COPY_BYTES = 1 << 20


class FermataFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a cluster. Without `address`, the cluster is found as `Cluster()` finds it."""

    protocol = "fermata"
    root_marker = "/"

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        user: str | None = None,
        mrctl: str | None = None,
        gateway: Gateway | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.gateway = gateway or Gateway(address, token=token, user=user, mrctl=mrctl)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        if text.startswith("fermata://"):
            text = text[len("fermata://") :]
            text = text[text.find("/") :] if "/" in text else "/"
        return "/" + "/".join(part for part in text.split("/") if part)

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        address = urlsplit(url).netloc
        return {"address": address} if address else {}

    def _info(self, status: dict[str, Any], path: str) -> dict[str, Any]:
        is_file = status["type"] == "FILE"
        return {
            "name": path,
            "size": status["length"],
            "type": "file" if is_file else "directory",
            "owner": status["owner"],
            "group": status["group"],
            "mode": int(status["permission"], 8),
            "mtime": status["modificationTime"] / 1000,
            "file_id": status["fileId"],
        }

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        answer = self.gateway.files("GET", "GETFILESTATUS", path)
        return self._info(answer.json()["FileStatus"], path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            answer = self.gateway.files("GET", "LISTSTATUS_BATCH", path, startAfter=after)
            listing = answer.json()["DirectoryListing"]
            for status in listing["partialListing"]["FileStatuses"]["FileStatus"]:
                after = status["pathSuffix"]
                # The listing of a file is the file, without a name.
                name = f"{path.rstrip('/')}/{after}" if after else path
                found.append(self._info(status, name))
            if not listing["remainingEntries"]:
                break
        return found if detail else [entry["name"] for entry in found]

    def created(self, path: str) -> Any:
        raise NotImplementedError("the file system records only when a file was modified")

    def modified(self, path: str) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def checksum(self, path: str) -> Any:
        path = self._strip_protocol(path)
        sum_ = self.gateway.files("GET", "GETFILECHECKSUM", path).json()["FileChecksum"]
        return sum_["bytes"]

    def ukey(self, path: str) -> str:
        info = self.info(path)
        return f"{info['file_id']}-{info['size']}-{info['mtime']}"

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(f"{path} exists already")
        if not create_parents:
            self.info(self._parent(path))
        self.gateway.files("PUT", "MKDIRS", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(f"{path} exists already")
        self.gateway.files("PUT", "MKDIRS", path)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(f"{path} is a file")
        self._delete(path, recursive=False)

    def _rm(self, path: str) -> None:
        self._delete(self._strip_protocol(path), recursive=False)

    def rm_file(self, path: str) -> None:
        self._rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in path if isinstance(path, list) else [path]:
            text = self._strip_protocol(one)
            for found in self.glob(text) if any(c in text for c in "*?[") else [text]:
                self._delete(found, recursive)

    def _delete(self, path: str, recursive: bool) -> None:
        answer = self.gateway.files("DELETE", "DELETE", path, recursive=str(recursive).lower())
        if not answer.json()["boolean"]:
            raise FileNotFoundError(f"{path} does not exist")

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        answer = self.gateway.files("PUT", "RENAME", path1, destination=path2)
        if not answer.json()["boolean"]:
            self.info(path1)
            raise FileExistsError(
                f"{path1} cannot be moved to {path2}: it exists, or its folder does not"
            )

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1 = self._strip_protocol(path1)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with tempfile.TemporaryFile() as local:
            self._receive(path1, local)
            self._put(local, self._strip_protocol(path2))

    def _put(self, body: IO[bytes] | bytes, path: str, overwrite: bool = True) -> None:
        self.gateway.files("PUT", "CREATE", path, body, overwrite=str(overwrite).lower())

    def _receive(self, path: str, local: IO[bytes]) -> None:
        for piece in self._pieces(path):
            local.write(piece)

    def _pieces(self, path: str) -> Iterator[bytes]:
        answer = self.gateway.files("GET", "OPEN", path, stream=True)
        try:
            yield from answer.stream(_COPY_BYTES)
        finally:
            answer.close()

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as local:
            self._put(local, rpath, overwrite=mode == "overwrite")

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **_: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is not None:
            self._receive(rpath, outfile)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as local:
            self._receive(rpath, local)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._put(bytes(value), self._strip_protocol(path), overwrite=mode == "overwrite")

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        if mode == "rb":
            info = self.info(path)
            if info["type"] == "directory":
                raise IsADirectoryError(f"{path} is a folder")
            return _Reader(
                self,
                path,
                mode,
                block_size or "default",
                autocommit,
                cache_options=cache_options,
                size=info["size"],
                **options,
            )
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r}: use rb, wb, xb or ab")
        return _Writer(self, path, mode, autocommit)


class _Reader(AbstractBufferedFile):  # type: ignore[misc]
    """Reads ranges of a file, with the caches of fsspec."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        answer = self.fs.gateway.files(
            "GET", "OPEN", self.path, offset=str(start), length=str(end - start)
        )
        return bytes(answer.data)


class _Writer(io.BufferedIOBase):
    """Collects what is written, and sends it when the file is closed or its transaction ends."""

    def __init__(self, fs: FermataFileSystem, path: str, mode: str, autocommit: bool) -> None:
        self._local = tempfile.TemporaryFile(prefix="fermata-")
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        if mode == "xb" and fs.exists(path):
            raise FileExistsError(f"{path} exists already")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._local.write(data)

    def tell(self) -> int:
        return self._local.tell()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self.autocommit:
            self.commit()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None and self.autocommit:
            # What was written is not complete.
            self.discard()
        self.close()

    def commit(self) -> None:
        """Sends the file."""
        if self._local.closed:
            return
        with self._local:
            if self.mode == "ab" and self.fs.exists(self.path):
                self._local.seek(0)
                self.fs.gateway.files("POST", "APPEND", self.path, self._local)
            else:
                self.fs._put(self._local, self.path, overwrite=self.mode != "xb")
        self.fs.invalidate_cache(self.path)

    def discard(self) -> None:
        """Drops what was written."""
        self._local.close()

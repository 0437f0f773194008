"""The gateway of a cluster over HTTP: REST for jobs, WebHDFS for files.

Requests that may be repeated are repeated for a while when the gateway or a master does not answer.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.response import BaseHTTPResponse

from fermata.errors import FermataError, GatewayError

_CONNECT_SECONDS = 10.0
# The gateway answers within `client.deadline` of the cluster, also when no master does.
_READ_SECONDS = 180.0
_RETRY_SECONDS = 60.0
_TRANSIENT = ("RetriableException", "StandbyException")

# Errors of WebHDFS that Python has a class for.
_ERRORS: dict[str, tuple[type[OSError], int]] = {
    "FileNotFoundException": (FileNotFoundError, errno.ENOENT),
    "FileAlreadyExistsException": (FileExistsError, errno.EEXIST),
    "AccessControlException": (PermissionError, errno.EACCES),
    "SecurityException": (PermissionError, errno.EACCES),
    "ParentNotDirectoryException": (NotADirectoryError, errno.ENOTDIR),
    "PathIsNotEmptyDirectoryException": (OSError, errno.ENOTEMPTY),
    "QuotaExceededException": (OSError, errno.EDQUOT),
}


def find(mrctl: str | None = None) -> tuple[str, str | None]:
    """Returns the address of the gateway of the cluster of the working folder, and its token."""
    program = mrctl or os.environ.get("FERMATA_MRCTL", "mrctl")
    advice = "start one with `mrctl up --detach`, or name its gateway: Cluster('HOST:PORT') or FERMATA_GATEWAY"
    try:
        ran = subprocess.run([program, "status", "--json"], capture_output=True, text=True)
    except OSError as error:
        raise GatewayError(
            f"no cluster found: cannot run {program} ({error.strerror}); {advice}"
        ) from None
    try:
        status = json.loads(ran.stdout)
    except ValueError:
        why = ran.stderr.strip().removeprefix("mrctl: ").splitlines()
        raise GatewayError(f"no cluster found: {why[0] if why else program}; {advice}") from None
    if status["state"] == "stopped":
        raise GatewayError(
            f"the cluster in {status['folder']} is stopped: start it with `mrctl up --detach`"
        )
    if not status["gateway"]:
        raise GatewayError(f"the cluster in {status['folder']} has no gateway: {advice}")
    if status["access"] == "open":
        return status["gateway"], None
    path = os.path.join(status["folder"], "gateway.token")
    try:
        with open(path) as file:
            return status["gateway"], file.read().strip()
    except OSError as error:
        raise GatewayError(
            f"cannot read the token {path} ({error.strerror}): get one with `mrctl token`, and give "
            "it as Cluster(token=...) or FERMATA_TOKEN",
            "unauthenticated",
        ) from None


class Gateway:
    """Sends requests to a gateway, with a token or, in an open cluster, the name of the user."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        mrctl: str | None = None,
    ) -> None:
        address = address or os.environ.get("FERMATA_GATEWAY")
        token = token or os.environ.get("FERMATA_TOKEN")
        if not address:
            address, found = find(mrctl)
            token = token or found
        self.address = address.removeprefix("http://").rstrip("/")
        if "/" in self.address or not self.address:
            raise GatewayError(f"gateway {address!r}: write HOST:PORT", "invalid")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._query = {} if token else {"user.name": user or getpass.getuser()}
        if token and user:
            self._query = {"doas": user}
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
        self._pool = urllib3.PoolManager(timeout=timeout, retries=False, maxsize=16)

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | IO[bytes] | None,
        *,
        kind: str | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        url = f"http://{self.address}{path}?{urlencode({**self._query, **query})}"
        headers = {**self._headers, **({"Content-Type": kind} if kind else {})}
        try:
            return self._pool.request(
                method, url, body=body, headers=headers, preload_content=not stream, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            reason = _reason(error)
            raise GatewayError(
                f"no answer from the gateway at {self.address} ({reason}): is the cluster running? "
                "`mrctl status` shows it"
            ) from error

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | IO[bytes] | None = None,
        *,
        repeat: bool,
        kind: str | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """Sends a request, again if it may be repeated. Returns any answer but a transient error."""
        began, pause = time.monotonic(), 0.1
        known = False
        while True:
            try:
                if body is not None and not isinstance(body, bytes):
                    body.seek(0)
                answer = self._send(method, path, query, body, kind=kind, stream=stream)
                known = True
                if answer.status not in (403, 429, 503):
                    return answer
                # With `stream`, this reads the message of the error.
                transient = answer.status != 403 or any(
                    name in answer.data.decode("utf-8", "replace") for name in _TRANSIENT
                )
                if not transient or not (repeat or answer.status == 429):
                    return answer
            except GatewayError as error:
                # Where nothing has ever answered, waiting does not help.
                if not repeat or not (known or self._has_answered):
                    raise
                last: GatewayError | BaseHTTPResponse = error
            else:
                last = answer
            if time.monotonic() - began > _RETRY_SECONDS:
                if isinstance(last, GatewayError):
                    raise last
                return last
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    # Whether this gateway has ever answered.
    _has_answered = False

    def api(self, method: str, path: str, body: object = None, /, **query: str) -> Any:
        """Calls the REST API at `/api/v1` and returns the JSON of its answer."""
        data = None if body is None else json.dumps(body).encode()
        kind = None if body is None else "application/json"
        answer = self.request(
            method, f"/api/v1{path}", query, data, repeat=method == "GET", kind=kind
        )
        self._has_answered = True
        if answer.status >= 400:
            raise _api_error(answer)
        kind = answer.headers.get("content-type", "")
        return (
            answer.json()
            if kind.startswith("application/json")
            else answer.data.decode("utf-8", "replace")
        )

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Returns the server-sent events of a call: their names and data."""
        answer = self.request("GET", f"/api/v1{path}", {}, repeat=True, stream=True)
        if answer.status >= 400:
            raise _api_error(answer)
        name = ""
        try:
            for line in answer:
                text = line.decode("utf-8").rstrip("\n")
                if text.startswith("event: "):
                    name = text[7:]
                elif text.startswith("data: "):
                    yield name, json.loads(text[6:])
        except urllib3.exceptions.HTTPError as error:
            raise GatewayError(
                f"the gateway at {self.address} has stopped answering ({_reason(error)})"
            ) from error
        finally:
            answer.close()

    def files(
        self,
        method: str,
        op: str,
        path: str,
        body: bytes | IO[bytes] | None = None,
        *,
        stream: bool = False,
        **params: str,
    ) -> BaseHTTPResponse:
        """Calls WebHDFS. Errors are those of Python, such as FileNotFoundError."""
        query = {"op": op, **params}
        if op in ("OPEN", "CREATE", "APPEND", "GETFILECHECKSUM"):
            # The gateway has the data itself, so it need not redirect.
            query["data"] = "true"
        answer = self.request(
            method,
            f"/webhdfs/v1{quote(path)}",
            query,
            body,
            repeat=op not in ("APPEND", "RENAME"),
            kind="application/octet-stream" if body is not None else None,
            stream=stream,
        )
        self._has_answered = True
        if answer.status >= 400:
            raise _file_error(answer, path)
        return answer


def _reason(error: BaseException) -> str:
    """Returns the innermost reason of an error of urllib3, without addresses of objects."""
    reason: object = getattr(error, "reason", None) or error
    while isinstance(reason, BaseException) and (reason.__cause__ or reason.__context__):
        reason = reason.__cause__ or reason.__context__
    text = getattr(reason, "strerror", None) or str(reason)
    return str(text)


def _api_error(answer: BaseHTTPResponse) -> GatewayError:
    try:
        error = answer.json()["error"]
        return GatewayError(error["message"], error["code"])
    except (ValueError, KeyError, TypeError):
        return GatewayError(f"the gateway answered {answer.status} {answer.reason}", "internal")


def _file_error(answer: BaseHTTPResponse, path: str) -> Exception:
    try:
        error = answer.json()["RemoteException"]
        name, message = error["exception"], error["message"].removeprefix("File does not exist: ")
    except (ValueError, KeyError, TypeError):
        return FermataError(f"{path}: the gateway answered {answer.status} {answer.reason}")
    kind, number = _ERRORS.get(name, (OSError, errno.EIO))
    return kind(number, message)

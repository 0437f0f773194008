"""The errors of this package. The text of each is one line: what failed, where, why, what to do."""

from __future__ import annotations


class FermataError(Exception):
    """Any error of this package."""


class GatewayError(FermataError):
    """The gateway cannot be reached, or has refused a request.

    `code` is that of the REST API: `invalid`, `unauthenticated`, `denied`, `not_found`, `conflict`,
    `limit`, `unavailable` or `internal`.
    """

    def __init__(self, message: str, code: str = "unavailable") -> None:
        super().__init__(message)
        self.code = code


class RemoteTraceback(Exception):
    """The traceback of a task, as text. It is the cause of `JobFailed`."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}\n"


class JobFailed(FermataError):
    """A job has failed or was killed. `traceback` is that of the failed task, if it has one."""

    def __init__(
        self, message: str, *, job: str = "", attempt: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.job = job
        self.attempt = attempt
        self.traceback = traceback
        if traceback:
            self.__cause__ = RemoteTraceback(traceback)

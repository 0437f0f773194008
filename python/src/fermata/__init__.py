"""MapReduce jobs in Python: locally, or on a Fermata cluster.

Tasks import this package from the archive of their job, on nodes that have nothing but Python. So
this file imports only what tasks need; the rest is imported when it is used for the first time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fermata.context import Task, count, file, status, task
from fermata.errors import FermataError, GatewayError, JobFailed

if TYPE_CHECKING:
    from fermata.cluster import Cluster, RunningJob
    from fermata.filesystem import FermataFileSystem
    from fermata.job import Job, Pipeline
    from fermata.result import Result

__all__ = [
    "Cluster",
    "FermataError",
    "FermataFileSystem",
    "GatewayError",
    "Job",
    "JobFailed",
    "Pipeline",
    "Result",
    "RunningJob",
    "Task",
    "count",
    "file",
    "status",
    "task",
]

_HOMES = {
    "Cluster": "cluster",
    "RunningJob": "cluster",
    "FermataFileSystem": "filesystem",
    "Job": "job",
    "Pipeline": "job",
    "Result": "result",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fermata' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fermata.{_HOMES[name]}"), name)

"""What functions of a job may use while they run in a task: counters, the status, side files."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

# Counters since the last report, by "GROUP:NAME" as the cluster shows them.
_counters: dict[str, int] = {}
# Side files of a local job. In a cluster they are in the working folder.
_files: dict[str, str] = {}


@dataclass(frozen=True)
class Task:
    """The running task. In a local job, the IDs begin with `local`."""

    job: str
    task: str
    attempt: str
    # `map` or `reduce`.
    kind: str
    # The path that a map reads; empty in a reduce.
    input_file: str


_local: Task | None = None


def count(name: str, amount: int = 1, *, group: str = "user") -> None:
    """Adds `amount` to a counter of the job."""
    key = f"{group}:{name}"
    try:
        _counters[key] += amount
    except KeyError:
        if "," in group or "\n" in key:
            raise ValueError(f"counter {key!r}: no comma in the group, no line breaks") from None
        _counters[key] = amount
    if amount < 0:
        raise ValueError(f"counter {key!r}: the amount {amount} is negative")


def status(text: str) -> None:
    """Sets the status of the task, which is also a sign of life for a task that computes long."""
    if _local is None:
        line = " ".join(text.split())
        print(f"reporter:status:{line}", file=sys.stderr, flush=True)


def file(name: str) -> str:
    """Returns the path of a side file (`files=` of `run`) with this name."""
    path = _files.get(name, name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no side file {name}: name it in files=[...] of run()")
    return path


def task() -> Task:
    """Returns the running task."""
    if _local is not None:
        return _local
    get = os.environ.get
    return Task(
        job=get("mapreduce_job_id", ""),
        task=get("mapreduce_task_id", ""),
        attempt=get("mapreduce_task_attempt_id", ""),
        kind="map" if get("mapreduce_task_ismap") == "true" else "reduce",
        input_file=get("mapreduce_map_input_file", ""),
    )


def begin(local: Task | None, files: dict[str, str]) -> None:
    """Begins a task of a local job; None ends it."""
    global _local
    _local = local
    _files.clear()
    _files.update(files)


def take_counters() -> dict[str, int]:
    """Returns the counters since the last call."""
    taken = dict(_counters)
    _counters.clear()
    return taken

"""Runs a job on this machine without a cluster, by the rules of the cluster.

Maps write runs that are sorted by key, one per partition; a reduce merges the runs of its
partition. Tasks run in this process, where a debugger works, or in processes of their own, which
run the archive that a cluster would get.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fermata import context
from fermata.errors import FermataError, JobFailed
from fermata.worker import Step, Write, describe_failure, lines_of, run_map, run_reduce

_SPLIT_BYTES = 32 << 20
_RUN_LINES = 1 << 20
_BATCH_LINES = 1 << 12
_MERGE_MAX = 100


@dataclass(frozen=True)
class Task:
    """What a task of a local job reads and writes."""

    kind: str
    index: int
    # The input file of a map and its range, or the runs of a reduce.
    inputs: list[str]
    start: int
    end: int
    # The prefix of the runs of a map, or the part of the output that the task writes.
    output: str
    reduces: int
    files: dict[str, str]


@dataclass(frozen=True)
class Done:
    """What a task has made: the names of its runs by partition, and its counters."""

    runs: list[list[str]]
    counters: dict[str, int]


def find_inputs(inputs: Sequence[str]) -> list[Path]:
    """Returns the files that the inputs stand for, as a cluster would."""
    found: dict[Path, None] = {}
    for given in inputs:
        path = Path(given)
        paths = [path] if path.exists() else _matches(path)
        if not paths:
            raise FermataError(f"input {given} does not exist on this machine")
        for one in paths:
            if one.is_dir():
                found.update(dict.fromkeys(_files_below(one)))
            else:
                found[one] = None
    return list(found)


def _matches(pattern: Path) -> list[Path]:
    """Patterns skip names that begin with `.` or `_` unless they begin with it themselves."""
    hidden = (".", "_")
    names = sorted(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
    return [
        path
        for path in names
        if pattern.name.startswith(hidden) or not path.name.startswith(hidden)
    ]


def _files_below(folder: Path) -> Iterator[Path]:
    """Names that begin with `.` or `_` are skipped."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            yield from _files_below(entry)
        else:
            yield entry


def _range(path: str, start: int, end: int) -> Iterator[bytes]:
    """Reads the lines that begin in a range of a file, as blocks without `CR` at line ends."""
    if path.endswith(".gz"):
        with gzip.open(path) as unpacked:
            yield from _blocks(unpacked, None)
        return
    with open(path, "rb") as file:
        if start:
            # The line that contains the byte before belongs to the split before.
            file.seek(start - 1)
            file.readline()
        yield from _blocks(file, end)


def _blocks(file: Any, end: int | None) -> Iterator[bytes]:
    while end is None or file.tell() < end:
        room = 1 << 18 if end is None else min(1 << 18, end - file.tell())
        block: bytes = file.read(room)
        if not block:
            return
        if not block.endswith(b"\n"):
            block += file.readline()
        yield block.replace(b"\r\n", b"\n") if b"\r" in block else block


def _write_lines(file: BinaryIO) -> Write:
    def write(lines: list[str]) -> None:
        if lines:
            file.write("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))

    return write


def _read_lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="surrogatepass", newline="\n") as file:
        for line in file:
            yield line[:-1]


def _key_of(line: str) -> str:
    return line.partition("\t")[0]


class _Runs:
    """Sorts the output of a map into runs by partition."""

    def __init__(self, prefix: str, reduces: int) -> None:
        self._prefix = prefix
        self._reduces = reduces
        self._lines: list[str] = []
        self.names: list[list[str]] = [[] for _ in range(reduces)]

    def write(self, lines: list[str]) -> None:
        self._lines += lines
        if len(self._lines) >= _RUN_LINES:
            self.flush()

    def flush(self) -> None:
        parts: list[list[str]] = [[] for _ in range(self._reduces)]
        if self._reduces == 1:
            parts[0] = self._lines
        else:
            for line in self._lines:
                hashed = zlib.crc32(_key_of(line).encode("utf-8", "surrogatepass"))
                parts[hashed % self._reduces].append(line)
        for part, (names, some) in enumerate(zip(self.names, parts, strict=True)):
            if some:
                some.sort(key=_key_of)
                names.append(f"{self._prefix}-{part}-{len(names)}")
                with open(names[-1], "wb") as file:
                    _write_lines(file)(some)
        self._lines = []


def _merged(runs: list[str]) -> Iterator[str]:
    """Merges sorted runs. Many runs are merged to fewer first."""
    while len(runs) > _MERGE_MAX:
        name = f"{runs[0]}-merged"
        with open(name, "wb") as file:
            write = _write_lines(file)
            for batch in _batches(heapq.merge(*map(_read_lines, runs[:_MERGE_MAX]), key=_key_of)):
                write(batch)
        runs = [*runs[_MERGE_MAX:], name]
    if len(runs) == 1:
        return _read_lines(runs[0])
    return heapq.merge(*map(_read_lines, runs), key=_key_of)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(lines, _BATCH_LINES)):
        yield batch


def _counted(
    batches: Iterable[list[Any]], name: str, counters: Counter[str]
) -> Iterator[list[Any]]:
    for batch in batches:
        counters[name] += len(batch)
        yield batch


def run_task(step: Step, of: Task) -> Done:
    """Runs a task in this process."""
    name = f"local.{of.kind[0]}{of.index}"
    source = of.inputs[0] if of.kind == "map" else ""
    context.begin(context.Task("local", name, f"{name}.0", of.kind, source), of.files)
    counters: Counter[str] = Counter()

    def counting(write: Write, counter: str) -> Write:
        def counted(lines: list[str]) -> None:
            counters[counter] += len(lines)
            write(lines)

        return counted

    runs = _Runs(of.output, of.reduces)
    try:
        if of.kind == "map":
            batches = lines_of(_range(of.inputs[0], of.start, of.end), step.input)
            batches = _counted(batches, "MAP_INPUT_RECORDS", counters)
            if step.reducer is not None:
                run_map(step, batches, counting(runs.write, "MAP_OUTPUT_RECORDS"))
                runs.flush()
            else:
                with open(of.output, "wb") as file:
                    run_map(step, batches, counting(_write_lines(file), "MAP_OUTPUT_RECORDS"))
        else:
            batches = _batches(_merged(of.inputs))
            batches = _counted(batches, "REDUCE_INPUT_RECORDS", counters)
            with open(of.output, "wb") as file:
                run_reduce(step, batches, counting(_write_lines(file), "REDUCE_OUTPUT_RECORDS"))
    finally:
        sys.stdout.flush()
        context.begin(None, {})
        counters.update(context.take_counters())
    return Done(runs.names, dict(counters))


def serve(pickled: bytes, spec: str) -> int:
    """Runs a task in a process of its own: `spec` is the file that describes it."""
    of = Task(**json.loads(Path(spec).read_text()))
    step = pickle.loads(pickled)
    try:
        answer: dict[str, Any] = asdict(run_task(step, of))
    except Exception as error:
        answer = {"traceback": describe_failure(step, error), "error": _cause_of(error)}
    Path(spec).write_text(json.dumps(answer))
    return 0


def _cause_of(error: BaseException) -> str:
    cause = error.__cause__ or error
    reason = f" ({error})" if error.__cause__ else ""
    return f"{type(cause).__name__}: {cause}{reason}"


class _Processes:
    """Runs tasks in processes, at most some at the same time."""

    def __init__(self, archive: bytes, folder: Path, most: int) -> None:
        self._archive = folder / "fermata-job.pyz"
        self._archive.write_bytes(archive)
        self._folder = folder
        self._most = most
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def _run(self, of: Task) -> Done:
        spec = self._folder / f"{of.kind}{of.index}.json"
        spec.write_text(json.dumps(asdict(of)))
        with self._lock:
            if self._stopped:
                raise FermataError("the job was stopped")
            command = [sys.executable, str(self._archive), "local", str(spec)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        answer = json.loads(spec.read_text())
        if code != 0 or "kind" in answer:
            raise JobFailed(f"local job failed: {of.kind} {of.index} ended with exit code {code}")
        if "error" in answer:
            raise _failed(of, answer["error"], answer["traceback"])
        return Done(**answer)

    def run(self, tasks: list[Task], done: Callable[[], None]) -> list[Done]:
        with ThreadPoolExecutor(self._most) as pool:
            running = [pool.submit(self._run, of) for of in tasks]
            try:
                results = []
                for one in running:
                    results.append(one.result())
                    done()
                return results
            except BaseException:
                with self._lock:
                    self._stopped = True
                    for process in self._running:
                        process.kill()
                for one in running:
                    one.cancel()
                raise


def _failed(of: Task, why: str, traceback: str = "") -> JobFailed:
    place = f"{of.kind} {of.index}" + (f" of {of.inputs[0]}" if of.kind == "map" else "")
    attempt = f"local.{of.kind[0]}{of.index}.0"
    return JobFailed(
        f"local job failed: {place}: {why}", job="local", attempt=attempt, traceback=traceback
    )


def run(
    step: Step,
    inputs: Sequence[str],
    output: Path,
    *,
    reduces: int,
    processes: int,
    files: dict[str, str],
    progress: Callable[[str, int, int], None],
) -> dict[str, int]:
    """Runs a job, and writes its parts to the folder `output`. Returns its counters."""
    counters: Counter[str] = Counter()
    parts = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        with tempfile.TemporaryDirectory(prefix="fermata-") as work:
            pool: _Processes | None = None
            if processes > 0:
                from fermata import archive

                pool = _Processes(archive.build(step), Path(work), processes)

            def all_of(tasks: list[Task]) -> list[Done]:
                ended = 0

                def done() -> None:
                    nonlocal ended
                    ended += 1
                    progress(tasks[0].kind, ended, len(tasks))

                results = pool.run(tasks, done) if pool else _run_here(step, tasks, done)
                for result in results:
                    counters.update(result.counters)
                return results

            maps: list[Task] = []
            for path, start, end in _splits(find_inputs(inputs), processes > 0):
                index = len(maps)
                name = (
                    f"{work}/m{index}" if step.reducer is not None else f"{parts}/part-m-{index:05}"
                )
                maps.append(Task("map", index, [path], start, end, name, max(reduces, 1), files))
            mapped = all_of(maps)
            if step.reducer is not None:
                tasks = []
                for index in range(reduces):
                    runs = [name for one in mapped for name in one.runs[index]]
                    part = f"{parts}/part-r-{index:05}"
                    tasks.append(Task("reduce", index, runs, 0, 0, part, 1, files))
                all_of(tasks)
        (parts / "_SUCCESS").touch()
        parts.chmod(0o755)
        os.rename(parts, output)
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    return dict(counters)


def _run_here(step: Step, tasks: list[Task], done: Callable[[], None]) -> list[Done]:
    results = []
    for of in tasks:
        try:
            results.append(run_task(step, of))
        except Exception as error:
            failed = _failed(of, _cause_of(error), describe_failure(step, error))
            # The exception itself, so that a debugger stops where it was raised.
            raise failed from (error.__cause__ or error)
        done()
    return results


def _splits(paths: list[Path], cut: bool) -> Iterator[tuple[str, int, int]]:
    for path in paths:
        size = path.stat().st_size
        name = str(path)
        if not cut or name.endswith(".gz"):
            yield name, 0, size
            continue
        for start in range(0, size, _SPLIT_BYTES):
            yield name, start, min(start + _SPLIT_BYTES, size)

"""Jobs and pipelines, and how to run them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fermata.errors import FermataError
from fermata.progress import Progress
from fermata.result import Result
from fermata.worker import Step

if TYPE_CHECKING:
    from fermata.cluster import Cluster, RunningJob

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Function = Callable[..., Any] | type | object | None


class Job:
    """A job: a mapper, and optionally a reducer and a combiner.

    `mapper(line)` yields or returns pairs of a key and a value. `reducer(key, values)` and
    `combiner(key, values)` yield pairs, or return a value for the key. Each may instead be a class
    or an object with the method `map`, `reduce` or `combine`, and optionally `setup()`, which runs
    before the first record of a task, and `finish()`, which may yield pairs after the last one.

    `input` is `lines` (text), `bytes` (lines as bytes), or `records`: the output of another job,
    for `mapper(key, value)`. Without a mapper, pairs reach the reducer unchanged.
    `text=True` writes `key TAB value` as `str` gives them, for other programs; the result then has
    strings. `stateless` says that a mapper and a reducer remember nothing from one record or key to
    the next, so that preemption loses no work; by default this is assumed of functions.
    """

    def __init__(
        self,
        mapper: Function = None,
        reducer: Function = None,
        *,
        combiner: Function = None,
        name: str = "",
        input: str | None = None,
        text: bool = False,
        stateless: bool | None = None,
    ) -> None:
        if mapper is None and reducer is None:
            raise FermataError("a job needs a mapper or a reducer")
        if combiner is not None and reducer is None:
            raise FermataError("a combiner without a reducer has no effect: give a reducer")
        if input not in (None, "lines", "bytes", "records"):
            raise FermataError(f"input={input!r}: use lines, bytes or records")
        for what, given, method in (
            ("mapper", mapper, "map"),
            ("reducer", reducer, "reduce"),
            ("combiner", combiner, "combine"),
        ):
            has_method = hasattr(given, method) or (what == "combiner" and hasattr(given, "reduce"))
            if (
                given is not None
                and not has_method
                and (isinstance(given, type) or not callable(given))
            ):
                raise FermataError(f"{what} {given!r} is no function and has no method {method}")
        self.mapper = mapper
        self.reducer = reducer
        self.combiner = combiner
        self.name = name or _name_of(mapper) or _name_of(reducer) or "python"
        self.input = input
        self.text = text
        self.stateless = stateless

    def step(self, *, first: bool = True) -> Step:
        """Returns what the tasks need."""
        kind = self.input or ("lines" if first else "records")
        return Step(self.mapper, self.reducer, self.combiner, kind, self.text)

    def is_stateless(self, given: Function) -> bool:
        """Whether a function remembers nothing between its calls."""
        if self.stateless is not None:
            return self.stateless
        return given is None or getattr(given, "__code__", None) is not None

    def __or__(self, other: Job | Pipeline) -> Pipeline:
        return Pipeline(self, other)

    def run(
        self,
        inputs: Paths,
        *,
        cluster: Cluster | None = None,
        output: str | PathLike[str] | None = None,
        reduces: int = 1,
        processes: int = 0,
        files: Sequence[str | PathLike[str]] = (),
        wheels: Sequence[str | PathLike[str]] = (),
        conf: Mapping[str, str] | None = None,
        queue: str = "",
        priority: str = "",
        progress: bool | None = None,
    ) -> Result:
        """Runs the job to its end: on this machine, or on `cluster`.

        `inputs` are files, folders and patterns. On a cluster, relative paths and `file://` name
        local files, which are uploaded. `output` is a new folder; without it the result is
        temporary. `processes` are those of a local job; 0 runs it in this process. `files` and
        `wheels` are sent to the tasks. `conf`, `queue` and `priority` are for a cluster.
        """
        return Pipeline(self).run(
            inputs,
            cluster=cluster,
            output=output,
            reduces=reduces,
            processes=processes,
            files=files,
            wheels=wheels,
            conf=conf,
            queue=queue,
            priority=priority,
            progress=progress,
        )

    def submit(
        self,
        inputs: Paths,
        *,
        cluster: Cluster,
        output: str | PathLike[str],
        reduces: int = 1,
        files: Sequence[str | PathLike[str]] = (),
        wheels: Sequence[str | PathLike[str]] = (),
        conf: Mapping[str, str] | None = None,
        queue: str = "",
        priority: str = "",
    ) -> RunningJob:
        """Submits the job to a cluster and returns at once."""
        return cluster.submit(
            self,
            self.step(),
            paths(inputs),
            fspath(output),
            reduces=reduces,
            files=paths(files),
            wheels=paths(wheels),
            conf=conf,
            queue=queue,
            priority=priority,
        )


class Pipeline:
    """Jobs of which each reads the output of the one before: `Pipeline(a, b)`, or `a | b`."""

    def __init__(self, *jobs: Job | Pipeline) -> None:
        self.jobs: list[Job] = []
        for job in jobs:
            self.jobs += job.jobs if isinstance(job, Pipeline) else [job]
        if not self.jobs:
            raise FermataError("a pipeline needs a job")
        for job in self.jobs[:-1]:
            if job.text:
                raise FermataError(
                    f"job {job.name}: text=True is for the last job of a pipeline only"
                )

    def __or__(self, other: Job | Pipeline) -> Pipeline:
        return Pipeline(self, other)

    def run(
        self,
        inputs: Paths,
        *,
        cluster: Cluster | None = None,
        output: str | PathLike[str] | None = None,
        reduces: int = 1,
        processes: int = 0,
        files: Sequence[str | PathLike[str]] = (),
        wheels: Sequence[str | PathLike[str]] = (),
        conf: Mapping[str, str] | None = None,
        queue: str = "",
        priority: str = "",
        progress: bool | None = None,
    ) -> Result:
        """Runs the jobs one after another. The arguments are those of `Job.run`."""
        if reduces < 1:
            raise FermataError(f"reduces={reduces}: at least 1; a job without a reducer ignores it")
        current = paths(inputs)
        if not current:
            raise FermataError("no input: name files or folders to read")
        result: Result | None = None
        for index, job in enumerate(self.jobs):
            step = job.step(first=index == 0)
            target = fspath(output) if output is not None and job is self.jobs[-1] else None
            shown = Progress(progress, job.name)
            try:
                if cluster is not None:
                    before, result = (
                        result,
                        cluster.run(
                            job,
                            step,
                            current,
                            target,
                            reduces=reduces,
                            files=paths(files),
                            wheels=paths(wheels),
                            conf=conf,
                            queue=queue,
                            priority=priority,
                            progress=shown,
                        ),
                    )
                else:
                    before, result = (
                        result,
                        _run_local(
                            step, current, target, reduces, processes, paths(files), shown, job.name
                        ),
                    )
            finally:
                shown.end()
            if before is not None:
                _add_counters(result, before)
                before.close()
            current = [result.path]
        assert result is not None
        return result


def _add_counters(result: Result, before: Result) -> None:
    for name, amount in before.counters.items():
        result.counters[name] = result.counters.get(name, 0) + amount


def paths(given: Paths) -> list[str]:
    """Returns a list of paths."""
    if isinstance(given, (str, PathLike)):
        return [fspath(given)]
    return [fspath(path) for path in given]


def _name_of(given: Function) -> str:
    name = getattr(given, "__name__", "" if given is None else type(given).__name__)
    return "" if name == "<lambda>" else str(name)


def _run_local(
    step: Step,
    inputs: list[str],
    output: str | None,
    reduces: int,
    processes: int,
    files: list[str],
    shown: Progress,
    name: str,
) -> Result:
    from fsspec.implementations.local import LocalFileSystem

    from fermata import local

    clean = None
    if output is None:
        folder = tempfile.mkdtemp(prefix="fermata-result-")
        target = Path(folder, "output")

        def clean() -> None:
            shutil.rmtree(folder, ignore_errors=True)

    else:
        target = Path(output)
        if target.exists():
            raise FermataError(f"output {output} exists already: name a new folder, or delete it")
        target.parent.mkdir(parents=True, exist_ok=True)
    side = {Path(path).name: str(Path(path).resolve()) for path in files}
    for path in files:
        if not Path(path).is_file():
            raise FermataError(f"side file {path} does not exist on this machine")
    try:
        counters = local.run(
            step,
            [path.removeprefix("file://") for path in inputs],
            target,
            reduces=reduces,
            processes=processes,
            files=side,
            progress=shown.tasks,
        )
    except BaseException:
        if clean is not None:
            clean()
        raise
    files_here = LocalFileSystem()
    return Result(
        str(target), counters, files_here, text=step.text, job=f"local {name}", clean=clean
    )

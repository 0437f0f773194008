"""Runs jobs on a cluster, through its gateway.

The archive of the job, side files and local inputs are uploaded to the staging folder of the job,
which the JobTracker deletes when the job ends. A result without a folder of its own is a folder in
`/tmp`, which is deleted with the `Result` object.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fermata import archive
from fermata.errors import FermataError, GatewayError, JobFailed
from fermata.filesystem import FermataFileSystem
from fermata.gateway import Gateway
from fermata.local import find_inputs
from fermata.progress import Progress, bar
from fermata.result import Result
from fermata.worker import Step

if TYPE_CHECKING:
    from fermata.job import Job

_STAGING = "/tmp/fermata/staging"
_LOG_BYTES = 64 << 10
_TRACEBACK = "Traceback (most recent call last):"
# How long a job is followed while the gateway does not answer.
_SILENCE_SECONDS = 120.0
# Errors after which a request may have been carried out.
_UNCERTAIN = ("unavailable", "internal")
_ENDED = ("succeeded", "failed", "killed")


class Cluster:
    """A cluster.

    `address` is that of its gateway. Without it, and without FERMATA_GATEWAY in the environment, it
    is the cluster that `mrctl status` finds in the working folder; then the token is found too.
    `token` may also be in FERMATA_TOKEN. With `user`, requests are made for another user, or, in an
    open cluster, as this user. `python` is the interpreter of the nodes.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        python: str = "python3",
        mrctl: str | None = None,
    ) -> None:
        self.gateway = Gateway(address, token=token, user=user, mrctl=mrctl)
        self.files = FermataFileSystem(gateway=self.gateway, skip_instance_cache=True)
        self.python = python

    def __repr__(self) -> str:
        return f"<Cluster {self.gateway.address}>"

    def api(self, method: str, path: str, body: object = None, /, **query: str) -> Any:
        """Calls the REST API, for example `api("GET", "/nodes")`, and returns its JSON."""
        return self.gateway.api(method, path, body, **query)

    def job(self, job: str) -> dict[str, Any]:
        """Returns a job, with the names of `mrctl job --json`."""
        found: dict[str, Any] = self.api("GET", f"/jobs/{job}")
        return found

    def submit(
        self,
        job: Job,
        step: Step,
        inputs: Sequence[str],
        output: str,
        **options: Any,
    ) -> RunningJob:
        """Submits a job. `Job.submit` is the call for users."""
        running = RunningJob(self, output, step.text)
        with running.killed_on_interrupt():
            self._submit(running, job, step, inputs, **options)
        return running

    def _submit(
        self,
        running: RunningJob,
        job: Job,
        step: Step,
        inputs: Sequence[str],
        *,
        reduces: int,
        files: Sequence[str],
        wheels: Sequence[str],
        conf: Mapping[str, str] | None,
        queue: str,
        priority: str,
    ) -> None:
        made = archive.build(step)
        staging = f"{_STAGING}/{uuid.uuid4()}"
        command = f"{self.python} {archive.NAME}"
        settings = {"stream.mapper": f"{command} map"}
        if job.is_stateless(step.mapper):
            settings["stream.mapper.divisible"] = "true"
        if step.reducer is not None:
            settings["stream.reducer"] = f"{command} reduce"
            if job.is_stateless(step.reducer):
                settings["stream.reducer.restartable"] = "true"
        output = running.output
        side = _side_files(files, wheels)
        self._check(inputs, output)
        self._stage(staging)
        sent = False
        try:
            self.files.pipe_file(f"{staging}/{archive.NAME}", made)
            sent_files = [f"{staging}/{archive.NAME}"]
            for name, path in side.items():
                self.files.put_file(path, f"{staging}/{name}")
                sent_files.append(f"{staging}/{name}")
            request = {
                "name": job.name,
                "builtin": "streaming",
                "files": sent_files,
                "inputs": list(self._inputs(inputs, f"{staging}/input")),
                "output": output,
                "reduces": reduces if step.reducer is not None else 0,
                "conf": {**settings, **(conf or {})},
                "queue": queue,
                "priority": priority,
                "staging": staging,
            }
            sent = True
            running.send(request)
        except BaseException as error:
            # Without an answer the JobTracker may have accepted the job, which then needs its files.
            refused = isinstance(error, GatewayError) and error.code not in _UNCERTAIN
            if not sent or refused:
                with contextlib.suppress(OSError, FermataError):
                    self.files.rm(staging, recursive=True)
            raise

    def run(
        self,
        job: Job,
        step: Step,
        inputs: Sequence[str],
        output: str | None,
        *,
        progress: Progress,
        **options: Any,
    ) -> Result:
        """Runs a job to its end. `Job.run` is the call for users."""
        target = output or f"/tmp/fermata-result-{uuid.uuid4()}"
        running = RunningJob(self, target, step.text)
        try:
            with running.killed_on_interrupt():
                self._submit(running, job, step, inputs, **options)
                result = running.wait(progress=progress)
        finally:
            progress.end()
        if output is None:
            result = Result(
                running.output,
                result.counters,
                self.files,
                text=step.text,
                job=running.job,
                clean=_deletion(self.files, running.output),
            )
        return result

    def _stage(self, staging: str) -> None:
        try:
            self.files.gateway.files("PUT", "MKDIRS", staging, permission="700")
        except OSError as error:
            raise GatewayError(
                f"cannot make the staging folder: {error.strerror}", "denied"
            ) from None

    def _check(self, inputs: Sequence[str], output: str) -> None:
        """Finds what would be refused anyway before anything is uploaded."""
        for given in inputs:
            path = _local_path(given)
            if path is not None:
                find_inputs([path])
        if output and self.files.exists(output):
            raise GatewayError(
                f"output {output} exists already in the cluster: name a new folder, or delete it",
                "conflict",
            )

    def _inputs(self, inputs: Sequence[str], folder: str) -> Iterator[str]:
        """Returns the inputs in the cluster. Uploads those that are local."""
        for index, given in enumerate(inputs):
            path = _local_path(given)
            if path is None:
                yield self.files._strip_protocol(given)
                continue
            for number, file in enumerate(find_inputs([path])):
                self.files.put_file(str(file), f"{folder}/{index}/{number:06}-{file.name}")
            yield f"{folder}/{index}"


class RunningJob:
    """A submitted job."""

    def __init__(self, cluster: Cluster, output: str, text: bool) -> None:
        self.cluster = cluster
        self.job = ""
        self.output: str = cluster.files._strip_protocol(output)
        self._text = text
        self._answer: Future[Any] | None = None

    def __repr__(self) -> str:
        return f"<RunningJob {self.job}>"

    def send(self, request: dict[str, Any]) -> None:
        """Submits the job. A thread waits for the answer, so that Ctrl-C does not lose it."""
        pool = ThreadPoolExecutor(1)
        self._answer = pool.submit(self.cluster.api, "POST", "/jobs", request)
        pool.shutdown(wait=False)
        self.job = self._answer.result()["job"]

    @contextlib.contextmanager
    def killed_on_interrupt(self) -> Iterator[None]:
        """Kills the job if Ctrl-C interrupts what is done here."""
        try:
            yield
        except KeyboardInterrupt:
            with contextlib.suppress(FermataError):
                if self._answer is not None:
                    self.job = self._answer.result()["job"]
                    self.kill()
            raise

    def status(self) -> dict[str, Any]:
        """Returns the job, with the names of `mrctl job --json`."""
        return self.cluster.job(self.job)

    def kill(self) -> None:
        """Kills the job."""
        self.cluster.api("POST", f"/jobs/{self.job}/kill")

    def wait(self, *, progress: Progress | bool | None = None) -> Result:
        """Waits until the job has ended, and returns its result. Raises JobFailed if it failed."""
        own = not isinstance(progress, Progress)
        shown = Progress(progress, self.job) if not isinstance(progress, Progress) else progress
        try:
            status = self._follow(shown)
        finally:
            if own:
                shown.end()
        if status["state"] != "succeeded":
            raise self._failure(status)
        files = self.cluster.files
        return Result(self.output, status["counters"], files, text=self._text, job=self.job)

    def _follow(self, shown: Progress) -> dict[str, Any]:
        answered = time.monotonic()
        while True:
            try:
                for name, data in self.cluster.gateway.events(f"/jobs/{self.job}/watch"):
                    answered = time.monotonic()
                    if name == "error":
                        raise GatewayError(data["error"]["message"], data["error"]["code"])
                    shown.show(_progress_of(data))
                    if data["state"] in _ENDED:
                        # An event may come before the last counters.
                        return self.status()
            except GatewayError as error:
                if error.code != "unavailable" or time.monotonic() - answered > _SILENCE_SECONDS:
                    raise
            time.sleep(0.5)

    def _failure(self, status: dict[str, Any]) -> JobFailed:
        state, why = status["state"], status["why"].strip()
        if state == "killed":
            return JobFailed(f"{self.job} was killed" + (f": {why}" if why else ""), job=self.job)
        attempt, traceback = "", ""
        # The reason of the job is more important than why its log cannot be read.
        with contextlib.suppress(FermataError):
            attempt = self._failed_attempt(why)
            if attempt:
                log = self.cluster.api("GET", f"/attempts/{attempt}/log", tail=str(_LOG_BYTES))
                traceback = _traceback_of(log)
        lines = [line.strip() for line in why.splitlines() if line.strip()]
        short = lines[0].rstrip(":") if lines else "no reason is known"
        if traceback:
            # The exception says more than how the process ended.
            short = short.partition(": stream.")[0]
            lines = [line.strip() for line in traceback.splitlines()]
            where = [line for line in lines if line.startswith("(the ")]
            text = " ".join([f"{short}: {lines[-1]}", *where[-1:]])
        else:
            text = ": ".join([short, *lines[1:][-1:]])
        advice = "" if not attempt else f" (log: `mrctl logs {attempt}`)"
        return JobFailed(
            f"{self.job} failed: {text}{advice}", job=self.job, attempt=attempt, traceback=traceback
        )

    def _failed_attempt(self, why: str) -> str:
        """Returns the attempt that failed last: of the task that the reason names, if there is one."""
        failed = []
        query: dict[str, str] = {}
        while True:
            page = self.cluster.api("GET", f"/jobs/{self.job}/tasks", None, limit="1000", **query)
            for task in page["tasks"]:
                named = f"{task['task']} " in f"{why} "
                failed += [
                    (named, one["ended_ms"], one["attempt"])
                    for one in task["attempts"]
                    if one["state"] == "failed"
                ]
            if page["next"] is None:
                break
            query = {"after": page["next"]}
        return str(max(failed)[2]) if failed else ""


def _progress_of(job: dict[str, Any]) -> str:
    maps, reduces = job["maps"], job["reduces"]
    parts = [f"map {bar(maps['progress'])} {maps['done']}/{maps['total']}"]
    if reduces["total"]:
        parts.append(f"reduce {bar(reduces['progress'])} {reduces['done']}/{reduces['total']}")
    return f"{job['job']} {'  '.join(parts)}  {job['state']}"


def _traceback_of(log: str) -> str:
    at = log.rfind(_TRACEBACK)
    return log[at:].strip() if at >= 0 else ""


def _local_path(given: str) -> str | None:
    """Returns the local path that an input names; None if it is a path of the cluster."""
    if given.startswith("file://"):
        return given[len("file://") :]
    return None if given.startswith(("/", "fermata://")) else given


def _side_files(files: Sequence[str], wheels: Sequence[str]) -> dict[str, str]:
    found = {archive.NAME: ""}
    for path in [*files, *wheels]:
        name = os.path.basename(path)
        if not Path(path).is_file():
            raise FermataError(f"side file {path} does not exist on this machine")
        if name in found:
            raise FermataError(
                f"two side files would be {name} in the folder of a task: rename one"
            )
        found[name] = path
    for path in wheels:
        if not path.endswith(".whl"):
            raise FermataError(f"wheels=: {path} is no wheel; send other files with files=")
    del found[archive.NAME]
    return found


def _deletion(files: FermataFileSystem, path: str) -> Callable[[], None]:
    def delete() -> None:
        with contextlib.suppress(OSError, FermataError):
            files.rm(path, recursive=True)

    return delete

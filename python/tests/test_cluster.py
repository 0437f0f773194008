from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import WORDS
from test_local import Longest, Pairs, failing, total, words

from fermata import Cluster, FermataError, GatewayError, Job, JobFailed
from fermata.gateway import find

TIMEOUT = 300.0


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("combiner", [None, total])
def test_result_is_that_of_a_local_job(cluster: Cluster, books: Path, combiner: Any) -> None:
    job = Job(words, total, combiner=combiner)
    result = job.run(f"file://{books}", cluster=cluster)
    assert list(result) == list(job.run(books))
    assert dict(result) == WORDS
    assert result.counters["user:lines"] == result.counters["MAP_INPUT_RECORDS"] == 5
    assert cluster.files.exists(result.path)
    result.close()
    assert not cluster.files.exists(result.path)


def test_one_argument_moves_a_job_to_a_cluster(
    cluster: Cluster, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(books.parent)
    for where in (None, cluster):
        assert dict(Job(words, total).run("books", cluster=where)) == WORDS


def test_job_keeps_its_output_and_leaves_nothing_else(
    cluster: Cluster, books: Path, folder: str
) -> None:
    staging = "/tmp/fermata/staging"
    before = set(cluster.files.ls("/tmp", detail=False))
    cluster.files.put(str(books), f"{folder}/books", recursive=True)
    job = Job(words, total, text=True)
    result = job.run(f"{folder}/books", cluster=cluster, output=f"{folder}/out", reduces=2)
    assert dict(result) == {word: str(count) for word, count in WORDS.items()}
    assert len(result.parts()) == 2
    result.close()
    text = b"".join(cluster.files.cat(f"{folder}/out/part-*").values()).decode()
    assert "the\t3\n" in text
    with pytest.raises(
        GatewayError, match=r"output .*/out exists already in the cluster: name a new"
    ):
        job.run(f"{folder}/books", cluster=cluster, output=f"fermata://{folder}/out")
    eventually(lambda: not cluster.files.ls(staging, detail=False))
    assert set(cluster.files.ls("/tmp", detail=False)) == before


def test_classes_files_and_pipelines(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "stop.txt").write_text("incomprehensible")
    (tmp_path / "a").write_text("x incomprehensible\nlonger\nlongest")
    inputs = f"file://{tmp_path}/a"
    result = Job(Longest, Longest).run(inputs, cluster=cluster, files=[tmp_path / "stop.txt"])
    assert list(result) == [(None, "longest")]
    keys = Job(
        lambda line: [((len(line), line.encode(), None, 1.5, True), [line])], lambda k, v: list(v)
    )
    flat = Job(lambda key, value: [(key[0], (key[1], value))])
    pipeline = keys | flat
    assert list(pipeline.run(inputs, cluster=cluster)) == list(pipeline.run(tmp_path / "a"))


def test_wheels_are_imported(cluster: Cluster, tmp_path: Path) -> None:
    for name, member in [("pure", "pure.py"), ("compiled", "compiled/__init__.py")]:
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, f"def name():\n    return '{name} from ' + __file__\n")
            if name == "compiled":
                wheel.writestr("compiled/native.so", b"")
    (tmp_path / "in").write_text("line\n")

    def mapper(line: str) -> Pairs:
        import compiled  # type: ignore[import-not-found]
        import pure  # type: ignore[import-not-found]

        print("what a task prints goes to its log")
        yield pure.name(), compiled.name()

    wheels = sorted(tmp_path.glob("*.whl"))
    [(pure, compiled)] = Job(mapper).run(f"file://{tmp_path}/in", cluster=cluster, wheels=wheels)
    assert pure.startswith("pure from ") and pure.endswith(".whl/pure.py")
    assert compiled.startswith("compiled from ") and ".whl/" not in compiled
    with pytest.raises(FermataError, match="is no wheel"):
        Job(mapper).run(f"file://{tmp_path}/in", cluster=cluster, wheels=[tmp_path / "in"])


def test_failure_has_the_traceback_of_the_task(cluster: Cluster, books: Path) -> None:
    with pytest.raises(JobFailed) as raised:
        Job(failing, total).run(f"file://{books}/one.txt", cluster=cluster)
    text, traceback = str(raised.value), raised.value.traceback
    assert "\n" not in text and "failed 4 times: ValueError: no dogs" in text
    assert "the mapper failed at the record 'the cat and the dog'" in text
    assert 'raise ValueError("no dogs")' in traceback and "test_local.py" in traceback
    assert "worker.py" not in traceback
    assert raised.value.attempt.startswith(raised.value.job)

    def bad(word: str, counts: Iterable[int]) -> int:
        raise KeyError(word)

    with pytest.raises(
        JobFailed, match=r"r0 failed 4 times: KeyError: 'a' \(the reducer failed at"
    ):
        Job(words, bad).run(f"file://{books}", cluster=cluster)

    def missing(line: str) -> Pairs:
        import no_such_package  # type: ignore[import-not-found]

        yield line, no_such_package

    with pytest.raises(JobFailed, match="No module named 'no_such_package'"):
        Job(missing).run(f"file://{books}", cluster=cluster)


def test_bad_records_are_skipped(cluster: Cluster, books: Path) -> None:
    conf = {"skip.bad.records": "3"}
    result = Job(failing).run(f"file://{books}/one.txt", cluster=cluster, conf=conf)
    assert list(result) == [("The end", 1)]
    assert result.counters["SKIPPED_RECORDS"] == 1


def test_wrong_requests_are_refused_in_one_line(cluster: Cluster, books: Path, folder: str) -> None:
    job, address = Job(words, total), cluster.gateway.address
    here = f"file://{books}"
    cases: list[tuple[str, Callable[[], Any]]] = [
        (
            "input /none does not exist in the file system",
            lambda: job.run("/none", cluster=cluster),
        ),
        ("input none does not exist on this machine", lambda: job.run("none", cluster=cluster)),
        (
            "setting split.sise is unknown: did you mean split.size",
            lambda: job.run(here, cluster=cluster, conf={"split.sise": "1"}),
        ),
        ("priority", lambda: job.run(here, cluster=cluster, priority="much")),
        (
            "is the cluster running",
            lambda: job.run(here, cluster=Cluster("127.0.0.1:1", token="x")),
        ),
        ("write HOST:PORT", lambda: Cluster("http://x/y")),
        ("there is no job_9999", lambda: cluster.job("job_9999")),
    ]
    if cluster.gateway._headers:
        unknown = Cluster(address, token="f1:user:ann:-:99999999999:00")
        cases.append(("token", lambda: job.run(here, cluster=unknown)))
    for message, call in cases:
        with pytest.raises(FermataError) as raised:
            call()
        assert message in str(raised.value) and "\n" not in str(raised.value), raised.value
    assert cluster.files.ls("/tmp/fermata/staging") == []


def test_other_python_of_the_nodes_is_refused(
    cluster: Cluster, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor = sys.version_info[:2]
    monkeypatch.setattr(sys, "version_info", (major, minor + 1, 0))
    with pytest.raises(JobFailed, match=f"this node runs Python {major}.{minor}"):
        Job(words).run(f"file://{books}", cluster=cluster)
    monkeypatch.undo()
    nowhere = Cluster(cluster.gateway.address, token=_token(cluster), python="python3.0")
    with pytest.raises(JobFailed, match="python3.0: No such file or directory"):
        Job(words).run(f"file://{books}", cluster=nowhere)


def _token(cluster: Cluster) -> str | None:
    return cluster.gateway._headers.get("Authorization", " ").split(" ", 1)[1] or None


def test_no_cluster_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GatewayError, match="cannot run /none/mrctl .*start one with `mrctl up"):
        find("/none/mrctl")
    program = tmp_path / "mrctl"
    for status, message in [
        ('{"state": "stopped", "folder": "/x"}', "the cluster in /x is stopped: start it"),
        ('{"state": "running", "folder": "/x", "gateway": ""}', "/x has no gateway"),
        (
            '{"state": "running", "folder": "/x", "gateway": "h:1", "access": "closed"}',
            "cannot read the token /x/gateway.token",
        ),
    ]:
        program.write_text(f"#!/bin/sh\necho '{status}'\n")
        program.chmod(0o755)
        with pytest.raises(GatewayError, match=message):
            find(str(program))
    program.write_text("#!/bin/sh\necho 'mrctl: no cluster in /y: start one' >&2; exit 1\n")
    with pytest.raises(GatewayError, match="no cluster found: no cluster in /y"):
        find(str(program))


SLOW = """
import sys, time
from fermata import Cluster, Job
def slow(line):
    time.sleep(1000)
    yield line, 1
Job(slow, name="slow").run(sys.argv[1], cluster=Cluster(), output=sys.argv[2])
"""


def test_interrupt_kills_the_job(cluster: Cluster, books: Path, folder: str) -> None:
    environment = {**os.environ, "FERMATA_GATEWAY": cluster.gateway.address}
    if _token(cluster):
        environment["FERMATA_TOKEN"] = str(_token(cluster))
    command = [sys.executable, "-c", SLOW, f"file://{books}", f"{folder}/out"]
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def job() -> Any:
        assert running.poll() is None
        jobs = cluster.api("GET", "/jobs", None, state="running")["jobs"]
        return [job["job"] for job in jobs if job["name"] == "slow" and job["maps"]["running"]]

    [name] = eventually(job)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None and "KeyboardInterrupt" in running.stderr.read()
    assert running.wait() != 0
    assert cluster.job(name)["state"] == "killed"


def test_submitted_job_is_followed_and_killed(cluster: Cluster, books: Path, folder: str) -> None:
    here = f"file://{books}"
    running = Job(words, total).submit(here, cluster=cluster, output=f"{folder}/out")
    assert dict(running.wait()) == WORDS
    assert running.status()["state"] == "succeeded"

    def slow(line: str) -> Pairs:
        time.sleep(1000)
        yield line, 1

    running = Job(slow).submit(here, cluster=cluster, output=f"{folder}/slow")
    running.kill()
    with pytest.raises(JobFailed, match=f"{running.job} was killed"):
        running.wait(progress=True)


def test_preempted_map_of_a_function_loses_no_work(cluster: Cluster, folder: str) -> None:
    lines = [f"word{number % 100}" for number in range(20_000)]
    cluster.files.pipe(f"{folder}/in", "\n".join(lines).encode())

    def slow(line: str) -> Pairs:
        time.sleep(0.0005)
        yield line, 1

    for combiner in (None, total):
        output = f"{folder}/out{bool(combiner)}"
        running = Job(slow, total, combiner=combiner).submit(
            f"{folder}/in", cluster=cluster, output=output
        )

        def preempted() -> bool:
            try:
                cluster.api("POST", f"/attempts/{running.job}.m0.0/preempt", {"kind": "split"})
            except GatewayError:
                return False
            return True

        eventually(preempted)
        assert dict(running.wait()) == {f"word{number}": 200 for number in range(100)}
        assert running.status()["preemption"]["splits"] == 1

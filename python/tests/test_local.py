from __future__ import annotations

import gzip
import io
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WORDS

import fermata
from fermata import FermataError, Job, JobFailed, local, worker

Pairs = Iterator[tuple[Any, Any]]


def words(line: str) -> Pairs:
    fermata.count("lines")
    for word in line.lower().split():
        yield word, 1


def total(word: str, counts: Iterable[int]) -> int:
    return sum(counts)


@pytest.mark.parametrize("combiner", [None, total])
@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("reduces", [1, 3])
def test_words_are_counted(books: Path, combiner: Any, processes: int, reduces: int) -> None:
    job = Job(words, total, combiner=combiner)
    result = job.run(books, processes=processes, reduces=reduces)
    assert dict(result) == WORDS
    assert len(result.parts()) == reduces
    for part in result.parts():
        keys = [line.split("\t")[0] for line in Path(part).read_text().splitlines()]
        assert keys == sorted(keys)
    assert result.counters["user:lines"] == result.counters["MAP_INPUT_RECORDS"] == 5
    expected = 7 + 2 if combiner else sum(WORDS.values())
    assert result.counters["MAP_OUTPUT_RECORDS"] == expected or combiner
    folder = Path(result.path)
    result.close()
    assert not folder.exists()
    with pytest.raises(FermataError, match="deleted by close"):
        list(result)


class Longest:
    """A class as mapper and reducer, with setup and finish."""

    def setup(self) -> None:
        self.stop = set(Path(fermata.file("stop.txt")).read_text().split())
        self.longest = ""

    def map(self, line: str) -> Pairs:
        for word in line.split():
            if word not in self.stop and len(word) > len(self.longest):
                self.longest = word
        return iter(())

    def reduce(self, key: None, words: Iterable[str]) -> Pairs:
        for word in words:
            self.longest = max(self.longest, word, key=len)
        return iter(())

    def finish(self) -> Pairs:
        yield None, self.longest


@pytest.mark.parametrize("processes", [0, 1])
def test_classes_have_setup_and_finish(tmp_path: Path, processes: int) -> None:
    (tmp_path / "stop.txt").write_text("incomprehensible")
    for name, text in [("a", "x incomprehensible\nlonger"), ("b", "longest word")]:
        (tmp_path / name).write_text(text)
    inputs = [tmp_path / "a", tmp_path / "b"]
    result = Job(Longest, Longest).run(inputs, files=[tmp_path / "stop.txt"], processes=processes)
    assert list(result) == [(None, "longest")]
    with pytest.raises(JobFailed, match="no side file stop.txt"):
        Job(Longest, Longest).run(inputs)


class Counted:
    """A combiner that yields everything at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}

    def reduce(self, word: str, counts: Iterable[int]) -> None:
        self.sums[word] = self.sums.get(word, 0) + sum(counts)

    def finish(self) -> Pairs:
        yield from self.sums.items()


def test_finish_of_a_combiner_is_called(books: Path) -> None:
    assert dict(Job(words, total, combiner=Counted).run(books)) == WORDS


def test_keys_with_surrogates_stay_different_on_a_cluster() -> None:
    lines = "\udc80\t1\n\udc81\t2\n".encode("utf-8", "surrogatepass")
    for kind, keys in [("records", ["\udc80\t1", "\udc81\t2"]), ("lines", ["\ufffd" * 3 + "\t1"])]:
        batch = next(worker.lines_of(iter([lines]), kind))
        assert batch[: len(keys)] == keys


def test_pipeline_reads_records(books: Path) -> None:
    swap = Job(lambda word, count: [((-count, word), None)])
    top = Job(reducer=lambda key, _: -key[0])
    result = (Job(words, total) | swap | top).run(books)
    assert list(result)[:3] == [((-3, "the"), 3), ((-2, "a"), 2), ((-2, "and"), 2)]
    # The jobs before have their counters, and no files.
    assert result.counters["user:lines"] == 5
    assert len(result.parts()) == 1


def test_job_without_reducer_keeps_the_order_of_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("b\na\n\nc")
    result = Job(lambda line: [(line, None)] if line else None).run(tmp_path / "in")
    assert list(result) == [("b", None), ("a", None), ("c", None)]
    raw = Job(lambda line: [(line, len(line))], input="bytes").run(tmp_path / "in")
    assert list(raw) == [(b"b", 1), (b"a", 1), (b"", 0), (b"c", 1)]
    assert list(Job(reducer=lambda line, _: 1).run(tmp_path / "in"))[0] == ("", 1)


def test_text_output_is_for_other_programs(books: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    result = Job(words, total, text=True).run(books, output=output)
    assert "the\t3\n" in (output / "part-r-00000").read_text()
    assert dict(result)["the"] == "3"
    assert (output / "_SUCCESS").exists()
    result.close()
    assert output.exists()
    with pytest.raises(FermataError, match=r"output .*out exists already: name a new folder"):
        Job(words, total).run(books, output=output)
    with pytest.raises(JobFailed, match="a line break in a line of text output"):
        Job(lambda line: [("a\nb", 1)], text=True).run(books)


def test_result_becomes_a_frame(books: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = Job(words, total).run(books).to_pandas(["word", "count"])
    assert frame.set_index("word")["count"]["the"] == 3
    pairs = Job(lambda line: [((len(line), line), 1)], total).run(books)
    assert list(pairs.to_pandas(["length", "line", "count"]).columns) == ["length", "line", "count"]
    with pytest.raises(FermataError, match="4 columns are named, but a record has 3"):
        pairs.to_pandas(["a", "b", "c", "d"])
    assert isinstance(frame, pandas.DataFrame)


def test_gzip_and_patterns(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wt") as file:
        file.write("x\n" * 10)
    (tmp_path / "b.txt").write_text("x y\n")
    (tmp_path / "c.csv").write_text("x\n")
    (tmp_path / "_b").write_text("x\n")
    result = Job(words, total).run([f"{tmp_path}/*.gz", f"{tmp_path}/[_b]*"], processes=2)
    assert dict(result) == {"x": 11, "y": 1}
    with pytest.raises(FermataError, match="input .*none does not exist on this machine"):
        Job(words, total).run(tmp_path / "none")


def test_every_line_belongs_to_one_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {number} {'x' * (number % 7)}" for number in range(200)]
    for ending in ("\n", "\r\n"):
        path = tmp_path / f"in{len(ending)}"
        path.write_bytes(ending.join(lines).encode())
        size = path.stat().st_size
        for step in (1, 7, 100, size - 1, size):
            found = []
            for start in range(0, size, step):
                blocks = local._range(str(path), start, min(start + step, size))
                found += list(itertools.chain.from_iterable(worker.lines_of(blocks, "lines")))
            assert found == lines, (ending, step)


def test_many_runs_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_RUN_LINES", 10)
    monkeypatch.setattr(local, "_MERGE_MAX", 3)
    monkeypatch.setattr(worker, "_PAIRS", 4)
    monkeypatch.setattr(worker, "_COMBINE_PAIRS", 8)
    (tmp_path / "in").write_text("\n".join(str(number % 50) for number in range(500)))
    for combiner in (None, total):
        result = Job(words, total, combiner=combiner).run(tmp_path / "in", reduces=2)
        assert dict(result) == {str(number): 10 for number in range(50)}


def test_blocks_are_cut_at_lines() -> None:
    text = "a\nbü\n\nlong line\nend"
    data = text.encode()
    for size in range(1, len(data) + 1):
        blocks = [data[at : at + size] for at in range(0, len(data), size)]
        assert list(itertools.chain.from_iterable(worker.lines_of(blocks, "lines"))) == text.split(
            "\n"
        )


def failing(line: str) -> Pairs:
    if "dog" in line:
        raise ValueError("no dogs")
    yield line, 1


@pytest.mark.parametrize("processes", [0, 2])
def test_failure_has_the_traceback_of_the_function(books: Path, processes: int) -> None:
    with pytest.raises(JobFailed) as raised:
        Job(failing, total).run(books / "one.txt", processes=processes)
    text = str(raised.value)
    assert (
        "\n" not in text and "local job failed: map 0 of " in text and "ValueError: no dogs" in text
    )
    assert "the mapper failed at the record 'the cat and the dog'" in text
    assert 'raise ValueError("no dogs")' in raised.value.traceback
    assert "worker.py" not in raised.value.traceback
    assert raised.value.__cause__ is not None

    def bad(word: str, counts: Iterable[int]) -> int:
        raise KeyError(word)

    for role in ({"reducer": bad}, {"reducer": total, "combiner": bad}):
        with pytest.raises(JobFailed, match="failed at the key '"):
            Job(words, **role).run(books, processes=processes)  # type: ignore[arg-type]


def test_wrong_jobs_are_refused() -> None:
    for message, call in [
        ("needs a mapper or a reducer", lambda: Job()),
        ("combiner without a reducer", lambda: Job(words, combiner=total)),
        ("use lines, bytes or records", lambda: Job(words, input="words")),
        ("mapper 7 is no function", lambda: Job(7)),
        ("mapper <class 'int'> is no function and has no method map", lambda: Job(int)),
        ("no input", lambda: Job(words).run([])),
        ("reduces=0", lambda: Job(words).run("x", reduces=0)),
        ("text=True is for the last job", lambda: Job(words, text=True) | Job(words)),
        ("side file none.txt does not exist", lambda: Job(words).run(__file__, files=["none.txt"])),
    ]:
        with pytest.raises(FermataError, match=message):
            call()


def test_values_that_are_wrong_are_named(books: Path) -> None:
    for mapper, message in [
        (
            lambda line: [([1], 1)],
            r"unhashable type: 'list' \(the mapper gave \(\[1\], 1\) instead of",
        ),
        (lambda line: [1], r"cannot unpack .* \(the mapper gave 1 instead of a key and a value\)"),
        (lambda line: 7, "not iterable"),
        (lambda line: [({1: 2}.keys(), 1)], "a key of type dict_keys|unhashable"),
    ]:
        with pytest.raises(JobFailed, match=message):
            Job(mapper, total).run(books)
        with pytest.raises(JobFailed, match=message):
            Job(mapper, total, combiner=total).run(books)
    with pytest.raises(JobFailed, match=r"the reducer gave 7 instead of"):
        Job(words, lambda word, counts: iter([7])).run(books)


def test_counters_are_checked() -> None:
    with pytest.raises(ValueError, match="is negative"):
        fermata.count("x", -1)
    with pytest.raises(ValueError, match="no comma"):
        fermata.count("x", group="a,b")
    fermata.context.take_counters()


def test_task_is_known(books: Path) -> None:
    def mapper(line: str) -> Pairs:
        task = fermata.task()
        yield (task.kind, task.job, os.path.basename(task.input_file)), 1

    assert dict(Job(mapper, total).run(books / "one.txt")) == {("map", "local", "one.txt"): 2}


def test_objects_of_the_script_travel(tmp_path: Path) -> None:
    """Classes and helpers of a script and of a module next to it, in processes of their own."""
    (tmp_path / "helper.py").write_text("FACTOR = 2\ndef double(x):\n    return x * FACTOR\n")
    (tmp_path / "script.py").write_text(
        "import fermata, helper\n"
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Point:\n"
        "    x: int\n"
        "def points(line):\n"
        "    print('printed by a task')\n"
        "    yield 'p', Point(helper.double(int(line)))\n"
        "def largest(key, points):\n"
        "    return max(points, key=lambda point: point.x)\n"
        "print(list(fermata.Job(points, largest).run('in', processes=1)))\n"
    )
    (tmp_path / "in").write_text("1\n3\n2\n")
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "[('p', Point(x=6))]", ran.stderr
    assert ran.stdout.count("printed by a task") == 3


def test_interrupt_ends_the_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import fermata, os, time\n"
        "def slow(line):\n"
        "    open('started', 'w').write(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
        "    yield line, 1\n"
        "fermata.Job(slow).run('in', output='out', processes=2)\n"
    )
    (tmp_path / "in").write_text("1\n")
    running = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    started = tmp_path / "started"
    deadline = time.monotonic() + 300
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert "KeyboardInterrupt" in running.stderr.read()
    assert running.wait() != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert sorted(os.listdir(tmp_path)) == ["in", "script.py", "started"]


def test_progress_is_shown(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    Job(words, total).run(books, progress=True)
    assert "words: map" in shown.getvalue() and "2/2" in shown.getvalue()
    assert shown.getvalue().endswith("\n")

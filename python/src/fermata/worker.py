"""Runs the functions of a job in a task: over lines of text, in batches.

A batch is a list of lines without their ends. The loops over records are kept free of everything
that can be done once per batch. The task of a cluster reads and writes the pipes of a streaming
job; a local job calls the same functions with files.
"""

from __future__ import annotations

import linecache
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter, length_hint
from typing import Any

from fermata import context
from fermata.codec import KeyTexts, ValuesOfTexts, decode_key, encode_value

Batch = list[Any]
Write = Callable[[list[str]], None]

_READ_BYTES = 1 << 18
_PAIRS = 1 << 13
# A combiner runs when this many pairs were collected.
_COMBINE_PAIRS = 1 << 18
_REPORT_SECONDS = 1.0
_RECORD_CHARS = 200


@dataclass
class Step:
    """The functions of a job, as its tasks need them."""

    mapper: Any
    reducer: Any
    combiner: Any
    # `lines`, `bytes` or `records`.
    input: str
    # Whether the output is text instead of encoded keys and values.
    text: bool
    # The lines of the source files, by path, for tracebacks.
    sources: dict[str, list[str]] = field(default_factory=dict)


class TaskError(Exception):
    """A function of the user has failed. The cause has the reason."""


def _method(given: Any, name: str) -> tuple[Callable[..., Any], Any]:
    """Returns the function to call, and the object that has `setup` and `finish`, if there is one."""
    if isinstance(given, type):
        given = given()
    method = getattr(given, name, None)
    return (method, given) if callable(method) else (given, None)


def _begin(made: Any) -> None:
    setup = getattr(made, "setup", None)
    if callable(setup):
        setup()


def _end(made: Any) -> Iterator[tuple[Any, Any]]:
    finish = getattr(made, "finish", None)
    return iter(finish() or ()) if callable(finish) else iter(())


def _describe(record: object) -> str:
    text = repr(record)
    return text if len(text) <= _RECORD_CHARS else text[:_RECORD_CHARS] + "..."


class _Encoder:
    """Makes output lines of the pairs that a function gives."""

    def __init__(self, text: bool) -> None:
        self.keys = KeyTexts()
        self.text = text

    def lines(self, pairs: list[Any], of: str) -> list[str]:
        try:
            return self._lines(pairs)
        except Exception as error:
            raise self.wrong(pairs, of) from error

    def wrong(self, pairs: list[Any], of: str) -> TaskError:
        """Returns the error for the first of the pairs that cannot be encoded."""
        for pair in pairs:
            try:
                self._lines([pair])
            except Exception:
                return TaskError(f"{of} gave {_describe(pair)} instead of a key and a value")
        return TaskError(f"{of} gave what cannot be written")

    def _lines(self, pairs: list[Any]) -> list[str]:
        if self.text:
            return [_text_line(key, value) for key, value in pairs]
        keys, value_of = self.keys, encode_value
        return [
            f"{keys[key]}\t{value if type(value) is int else value_of(value)}"
            for key, value in pairs
        ]


def _text_line(key: object, value: object) -> str:
    line = str(key) if value is None else f"{key}\t{value}"
    if "\n" in line:
        raise ValueError(f"a line break in a line of text output: {_describe(line)}")
    return line


class _Combined:
    """Collects pairs by key, and lets the combiner reduce them whenever there are many."""

    def __init__(self, combiner: Any, encoder: _Encoder, write: Write) -> None:
        # A reducer may be the combiner too.
        method = "combine" if hasattr(combiner, "combine") else "reduce"
        self._function, self._made = _method(combiner, method)
        self._encoder = encoder
        self._write = write
        self._groups: defaultdict[str, list[Any]] = defaultdict(list)
        self._pairs = 0
        _begin(self._made)

    def add(self, pairs: list[tuple[Any, Any]]) -> None:
        keys, groups = self._encoder.keys, self._groups
        try:
            for key, value in pairs:
                groups[keys[key]].append(value)
        except Exception as error:
            raise self._encoder.wrong(pairs, "the mapper") from error
        self._pairs += len(pairs)
        if self._pairs >= _COMBINE_PAIRS:
            self._combine()
            self._pairs = 0
            if len(self._groups) > _COMBINE_PAIRS // 2:
                self._flush()

    def _combine(self) -> None:
        keys, function = self._encoder.keys, self._function
        combined: defaultdict[str, list[Any]] = defaultdict(list)
        for text, values in self._groups.items():
            if len(values) == 1:
                combined[text] += values
                continue
            key = decode_key(text)
            try:
                result = function(key, iter(values))
                if isinstance(result, Iterator):
                    for new, value in result:
                        combined[keys[new]].append(value)
                elif result is not None:
                    combined[text].append(result)
            except Exception as error:
                raise TaskError(f"the combiner failed at the key {_describe(key)}") from error
        self._groups = combined

    def _flush(self) -> None:
        value_of = encode_value
        self._write(
            [f"{text}\t{value_of(one)}" for text, values in self._groups.items() for one in values]
        )
        self._groups = defaultdict(list)

    def finish(self) -> None:
        self._combine()
        for key, value in _end(self._made):
            self._groups[self._encoder.keys[key]].append(value)
        self._flush()


def run_map(step: Step, batches: Iterable[Batch], write: Write) -> None:
    """Maps batches of input, and writes encoded pairs, or the output if there is no reducer."""
    encoder = _Encoder(step.text and step.reducer is None)
    combined = _Combined(step.combiner, encoder, write) if step.combiner else None
    function, made = _method(step.mapper, "map") if step.mapper is not None else (None, None)
    _call(lambda: _begin(made), "setup of the mapper")
    records_of = _reader(step.input)
    call = _mapping(function, step.input)

    def put(pairs: Iterator[Any]) -> None:
        while True:
            some = list(islice(pairs, _PAIRS))
            if not some:
                return
            if combined is not None:
                combined.add(some)
            else:
                write(encoder.lines(some, "the mapper"))

    for batch in batches:
        records = records_of(batch)
        position = iter(records)
        try:
            put(chain.from_iterable(map(call, position)))
        except TaskError:
            raise
        except Exception as error:
            at = len(records) - length_hint(position) - 1
            raise TaskError(f"the mapper failed at the record {_describe(records[at])}") from error
    _call(lambda: put(_end(made)), "finish of the mapper")
    if combined is not None:
        _call(combined.finish, "finish of the combiner")


def _call(function: Callable[[], None], what: str) -> None:
    try:
        function()
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"{what} failed") from error


def _reader(kind: str) -> Callable[[Batch], Batch]:
    """Returns a function that makes records of the lines of a batch."""
    if kind != "records":
        return lambda lines: lines
    values = ValuesOfTexts()

    def record(line: str) -> tuple[Any, Any]:
        key, _, value = line.partition("\t")
        return decode_key(key), values[value]

    return lambda lines: [record(line) for line in lines]


def _mapping(function: Callable[..., Any] | None, kind: str) -> Callable[[Any], Any]:
    """Returns a function that returns the pairs for a record."""
    if function is None:
        return (lambda pair: (pair,)) if kind == "records" else (lambda line: ((line, None),))
    is_generator = getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x20
    if kind == "records":
        mapper = function
        return lambda pair: mapper(*pair) or ()
    # A generator function never returns None.
    return function if is_generator else lambda line: function(line) or ()


def run_reduce(step: Step, batches: Iterable[Batch], write: Write) -> None:
    """Reduces batches of encoded pairs that are sorted by key, and writes the output."""
    encoder = _Encoder(step.text)
    function, made = _method(step.reducer, "reduce")
    _call(lambda: _begin(made), "setup of the reducer")
    value_of = ValuesOfTexts().__getitem__
    pairs = chain.from_iterable(map(_pairs_of, batches))
    out: list[str] = []
    for text, group in groupby(pairs, itemgetter(0)):
        key = decode_key(text)
        try:
            result = function(key, map(value_of, map(itemgetter(1), group)))
            if isinstance(result, Iterator):
                while some := list(islice(result, _PAIRS)):
                    out += encoder.lines(some, "the reducer")
            elif result is not None:
                out += encoder.lines([(key, result)], "the reducer")
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"the reducer failed at the key {_describe(key)}") from error
        if len(out) >= _PAIRS:
            write(out)
            out = []
    write(out)
    _call(lambda: write(encoder.lines(list(_end(made)), "the reducer")), "finish of the reducer")


def _pairs_of(batch: list[str]) -> Iterator[tuple[str, str]]:
    """Returns the texts of keys and values. Every encoded line has exactly one tab."""
    texts = "\t".join(batch).split("\t")
    return zip(texts[::2], texts[1::2], strict=True)


def lines_of(blocks: Iterable[bytes], kind: str) -> Iterator[Batch]:
    """Cuts blocks of bytes into batches of lines."""
    parts: list[bytes] = []
    for block in blocks:
        end = block.rfind(b"\n")
        if end < 0:
            parts.append(block)
            continue
        parts.append(block[:end])
        yield _split(b"".join(parts), kind)
        parts = [block[end + 1 :]] if end + 1 < len(block) else []
    if parts:
        yield _split(b"".join(parts), kind)


def _split(block: bytes, kind: str) -> Batch:
    if kind == "bytes":
        return block.split(b"\n")
    # Encoded pairs may contain surrogates: different keys must not become one.
    return block.decode("utf-8", "surrogatepass" if kind == "records" else "replace").split("\n")


def _blocks(source: int) -> Iterator[bytes]:
    while block := os.read(source, _READ_BYTES):
        yield block


def _reports() -> Callable[[bool], None]:
    """Returns a function that reports the counters, at most once in a second unless it must."""
    last = time.monotonic()

    def report(must: bool) -> None:
        nonlocal last
        now = time.monotonic()
        if must or now - last >= _REPORT_SECONDS:
            last = now
            for name, amount in context.take_counters().items():
                # The cluster adds the colon itself.
                line = f"reporter:counter:{name.replace(':', ',', 1)},{amount}\n"
                sys.stderr.write(line)
            sys.stderr.flush()

    return report


def describe_failure(step: Step, error: BaseException) -> str:
    """Returns the traceback of an error, without the frames of this package."""
    cause = error.__cause__ if isinstance(error, TaskError) and error.__cause__ else error
    for path, lines in step.sources.items():
        linecache.cache[path] = (sum(map(len, lines)), None, lines, path)
    own = os.path.dirname(describe_failure.__code__.co_filename)
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if not frame.filename.startswith(own)
    ]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    if isinstance(error, TaskError):
        lines.append(f"  ({error})\n")
    return "".join([*lines, *traceback.format_exception_only(type(cause), cause)])


def serve(step: Step, kind: str) -> int:
    """Runs a task of a streaming job: `kind` is `map` or `reduce`. Returns the exit code."""
    # What the functions print goes to the log, because the standard output is the output.
    output = os.dup(1)
    os.dup2(2, 1)
    report = _reports()

    def write(lines: list[str]) -> None:
        if lines:
            data = memoryview("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))
            while data:
                data = data[os.write(output, data) :]

    def batches() -> Iterator[Batch]:
        for batch in lines_of(_blocks(0), step.input if kind == "map" else "records"):
            yield batch
            report(False)

    try:
        (run_map if kind == "map" else run_reduce)(step, batches(), write)
    except Exception as error:
        sys.stdout.flush()
        report(True)
        sys.stderr.write(describe_failure(step, error))
        sys.stderr.flush()
        return 1
    sys.stdout.flush()
    report(True)
    return 0

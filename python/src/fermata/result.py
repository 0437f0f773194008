"""The output of a job: an iterable of keys and values, or a DataFrame."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fermata.codec import decode_key, decode_value
from fermata.errors import FermataError

if TYPE_CHECKING:
    import pandas


class Result:
    """The output of a job that has succeeded.

    Iterating reads the parts in their order, and within a part in the order of its lines; it may be
    repeated. Without `output=`, the files are temporary: they are deleted when this object is.
    """

    def __init__(
        self,
        path: str,
        counters: dict[str, int],
        files: Any,
        *,
        text: bool,
        job: str,
        clean: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.counters = counters
        self.job = job
        self.text = text
        self._files = files
        self._clean = weakref.finalize(self, clean) if clean else None

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Deletes the files if they are temporary. Also done when the object is not used any more."""
        if self._clean is not None:
            self._clean()

    def parts(self) -> list[str]:
        """Returns the paths of the output files."""
        if self._clean is not None and not self._clean.alive:
            raise FermataError(f"result of {self.job}: its temporary files were deleted by close()")
        names = sorted(str(name) for name in self._files.ls(self.path, detail=False))
        return [name for name in names if name.rsplit("/", 1)[-1].startswith("part-")]

    def lines(self) -> Iterator[str]:
        """Returns the lines of the output, as they are in its files."""
        for part in self.parts():
            with self._files.open(part, "rb") as file:
                for line in file:
                    yield line.rstrip(b"\n").decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for line in self.lines():
            key, _, value = line.partition("\t")
            if self.text:
                yield key, value
            else:
                yield decode_key(key), decode_value(value)

    def to_pandas(self, columns: Sequence[str] = ("key", "value")) -> pandas.DataFrame:
        """Returns a DataFrame with a row per record.

        With other than two columns, keys and values that are tuples are taken apart: a key `(a, b)`
        with the value `c` fills three columns.
        """
        try:
            import pandas
        except ImportError:
            raise FermataError("to_pandas needs pandas: pip install 'fermata[pandas]'") from None
        if len(columns) == 2:
            return pandas.DataFrame(list(self), columns=list(columns))
        rows = [(*_flat(key), *_flat(value)) for key, value in self]
        wrong = next((row for row in rows if len(row) != len(columns)), None)
        if wrong is not None:
            raise FermataError(
                f"{len(columns)} columns are named, but a record has {len(wrong)}: {wrong}"
            )
        return pandas.DataFrame(rows, columns=list(columns))

    def __repr__(self) -> str:
        return f"<Result of {self.job}: {self.path}>"


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)

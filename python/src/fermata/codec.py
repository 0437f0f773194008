"""Keys and values as text without tabs and line breaks.

A key is text whose order is the order of the keys: strings by code point, numbers by size, tuples
element by element. A plain string is its own text. The first character of every other key is a
control character, which is the type; in strings, control characters up to CR are escaped.

A value is JSON if JSON gives the same object back, and else a pickle in base64 after `@`.
"""

from __future__ import annotations

import base64
import json
import math
import pickle
import re
import struct
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring
from typing import Any

_NONE, _BOOL, _INT, _FLOAT, _BYTES, _TUPLE, _STR = "\x02\x03\x04\x05\x06\x07\x08"
_END = "\x00"
_SPECIAL = re.compile("[\x00-\x0d]")
_ESCAPED = re.compile("\x01(.)")
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_DIGITS_MAX = 999
_BIT = 1 << 63
_ALL = (1 << 64) - 1


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\x01{chr(ord(found[0]) + 64)}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(ord(found[1]) - 64), text)


def encode_key(key: object) -> str:
    """Returns the text of a key."""
    if type(key) is str:
        return _escape(key) if _SPECIAL.search(key) else key
    return _encode_typed(key)


def _encode_typed(key: object) -> str:
    kind = type(key)
    if kind is str:
        return _STR + _escape(str(key))
    if kind is int:
        assert isinstance(key, int)
        digits = str(abs(key))
        if len(digits) > _DIGITS_MAX:
            raise ValueError(f"a key of {len(digits)} digits: at most {_DIGITS_MAX} are possible")
        if key >= 0:
            return f"{_INT}p{len(digits):03}{digits}"
        return f"{_INT}n{_DIGITS_MAX - len(digits):03}{digits.translate(_COMPLEMENT)}"
    if isinstance(key, tuple) and kind is tuple:
        return _TUPLE + "".join(_encode_typed(part) + _END for part in key)
    if isinstance(key, float) and kind is float:
        # 0.0 and -0.0 are equal, so they are one key.
        (bits,) = struct.unpack(">Q", struct.pack(">d", key + 0.0))
        return f"{_FLOAT}{bits ^ _ALL if bits & _BIT else bits | _BIT:016x}"
    if key is None:
        return _NONE
    if kind is bool:
        return _BOOL + ("1" if key else "0")
    if isinstance(key, bytes) and kind is bytes:
        return _BYTES + key.hex()
    raise TypeError(
        f"a key of type {kind.__qualname__}: keys are str, int, float, bool, bytes, None or tuples "
        "of these; convert it"
    )


def decode_key(text: str) -> Any:
    """Returns the key of a text."""
    if not text or text[0] > _STR or text[0] == "\x01":
        return _unescape(text) if "\x01" in text else text
    if text[0] == _TUPLE:
        return _decode_tuple(text, 1)[0]
    return _decode_scalar(text)


def _decode_scalar(text: str) -> Any:
    kind, rest = text[0], text[1:]
    if kind == _STR:
        return _unescape(rest)
    if kind == _INT:
        return int(rest[4:]) if rest[0] == "p" else -int(rest[4:].translate(_COMPLEMENT))
    if kind == _FLOAT:
        bits = int(rest, 16)
        packed = struct.pack(">Q", bits & ~_BIT if bits & _BIT else bits ^ _ALL)
        return struct.unpack(">d", packed)[0]
    if kind == _BOOL:
        return rest == "1"
    return bytes.fromhex(rest) if kind == _BYTES else None


def _decode_tuple(text: str, at: int) -> tuple[tuple[Any, ...], int]:
    """Returns the tuple whose elements begin at `at`, and where they end."""
    parts: list[Any] = []
    while at < len(text) and text[at] != _END:
        if text[at] == _TUPLE:
            part, at = _decode_tuple(text, at + 1)
        else:
            end = text.index(_END, at)
            part, at = _decode_scalar(text[at:end]), end
        parts.append(part)
        at += 1
    return tuple(parts), at


class KeyTexts(dict[Any, str]):
    """The texts of keys, by key: `texts[key]`. Remembers those of strings.

    Only strings, because 1, 1.0 and True are equal but are different keys.
    """

    _MAX = 1 << 16

    def __missing__(self, key: Any) -> str:
        text = encode_key(key)
        if type(key) is str:
            if len(self) >= self._MAX:
                self.clear()
            self[key] = text
        return text


def _is_json(value: object) -> bool:
    """Returns whether JSON gives the same object back."""
    kind = type(value)
    if kind is list:
        assert isinstance(value, list)
        return all(map(_is_json, value))
    if kind is dict:
        assert isinstance(value, dict)
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return value is None or kind in (str, int, float, bool)


def _encode_float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_ENCODERS: dict[type, Callable[[Any], str]] = {
    int: str,
    str: encode_basestring,
    float: _encode_float,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}
_CONSTANTS = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def encode_value(value: object) -> str:
    """Returns the text of a value."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if _is_json(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        pickled = pickle.dumps(value, protocol=5)
    except Exception:
        # Classes of the script itself can be pickled by value only.
        import cloudpickle

        pickled = cloudpickle.dumps(value)
    return "@" + base64.b64encode(pickled).decode("ascii")


def decode_value(text: str) -> Any:
    """Returns the value of a text."""
    first = text[:1]
    if first == '"':
        return scanstring(text, 1)[0]
    if first == "@":
        return pickle.loads(base64.b64decode(text[1:]))
    if first in ("[", "{"):
        return json.loads(text)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return int(text)
    except ValueError:
        return float(text)


class ValuesOfTexts(dict[str, Any]):
    """The values of texts, by text: `values[text]`. Remembers those of short texts of scalars."""

    _MAX = 1 << 13

    def __missing__(self, text: str) -> Any:
        value = decode_value(text)
        if len(text) <= 8 and text[0] not in "@[{":
            if len(self) >= self._MAX:
                self.clear()
            self[text] = value
        return value

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from fermata.codec import (
    KeyTexts,
    ValuesOfTexts,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

KEYS: list[Any] = [
    *("", "a", "a b", "a\tb", "a\n", "\r", "\x00", "\x01A", "\x0e", "ü", "日本", "\ud800"),
    *(0, 1, -1, 9, 10, -10, 99, 100, 2**63, -(2**63), 10**300),
    *(0.0, 1.5, -1.5, 1e300, -1e-300, math.inf, -math.inf),
    *(True, False, None, b"", b"\x00", b"a\n"),
    *((), ("",), ("", ""), ("a",), ("a", 1), (1, 2), (1, (2, "x"), ()), ((1,), 2), ((1, 2),)),
]
VALUES: list[Any] = [*KEYS, [], [1, "\t", None], {"a": [1.5, {}]}, {1: 2}, {1, 2}, [(1, 2)], 3 + 4j]


def is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_keys_return_as_they_were(key: Any) -> None:
    text = encode_key(key)
    assert not set(text) & set("\t\n\r")
    assert is_same(decode_key(text), key)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_return_as_they_were(value: Any) -> None:
    text = encode_value(value)
    assert not set(text) & set("\t\n\r")
    assert is_same(decode_value(text), value)
    assert is_same(ValuesOfTexts()[text], value)


def test_nan_returns() -> None:
    assert math.isnan(decode_value(encode_value(math.nan)))
    assert math.isnan(decode_key(encode_key(math.nan)))


@pytest.mark.parametrize("kind", [str, int, float, bytes])
def test_texts_have_the_order_of_the_keys(kind: type) -> None:
    some = [key for key in KEYS if type(key) is kind]
    assert sorted(some) == sorted(some, key=encode_key)


def test_tuples_are_ordered_by_their_elements() -> None:
    chosen = random.Random(1)
    numbers = [chosen.randint(-(10**6), 10**6) for _ in range(100)]
    names = ["", "a", "a\n", "a b", "b"]
    some = list(itertools.product(numbers, names))
    chosen.shuffle(some)
    assert sorted(some) == sorted(some, key=encode_key)
    short = [(1,), (1, 2), (), (1, 2, 3), (2,)]
    assert sorted(short) == sorted(short, key=encode_key)


def test_equal_keys_of_different_types_are_different() -> None:
    texts = KeyTexts()
    assert len({texts[1], texts[1.0], texts[True], texts["1"], texts[b"1"]}) == 5
    assert texts[0.0] == texts[-0.0]


def test_other_keys_are_refused() -> None:
    with pytest.raises(TypeError, match="a key of type list: keys are str, int"):
        encode_key([1])
    with pytest.raises(ValueError, match="at most 999"):
        encode_key(10**1000)

"""Messages about hostile objects: short, on one line, quickly made, whatever the objects return."""

import sys
import time

import gradclip as gc
import numpy as np
import pytest
from hostile import PLACES, Arrays, Stop

LONG = 3 * 10**7


def says(text):
    """Methods that give a text."""
    return dict.fromkeys(["__repr__", "__str__", "__format__"], text)


def long_text(_=None, __=None):
    return "x" * LONG


def recurses(self, *_):
    return repr([self, self])


class Meta(type):
    """A class that lies about its name."""

    __name__ = property(lambda _: "x" * LONG)
    __module__ = __name__

    def __str__(cls):
        return "x" * LONG

    __repr__ = __str__


class Nameless(type):
    """A class whose name raises an error."""

    @property
    def __name__(cls):
        raise Stop

    __module__ = __name__

    def __repr__(cls):
        raise Stop


THINGS = {
    "an object": lambda: type("Long", (), says(long_text))(),
    "an int": lambda: type("Long", (int,), says(long_text))(-1),
    "a float": lambda: type("Long", (float,), says(long_text))(-1),
    "a complex": lambda: type("Long", (complex,), says(long_text))(-1),
    "a str": lambda: type("Long", (str,), says(long_text))("a"),
    "a list of them": lambda: [type("Long", (), says(long_text))()] * 4,
    "a tuple of them": lambda: (type("Long", (), says(long_text))(),) * 4,
    "a float64": lambda: type("Long", (np.float64,), says(long_text))(-1),
    "an array": lambda: np.ones(3, np.int8).view(type("Long", (np.ndarray,), says(long_text))),
    "a 0-d array": lambda: np.array(1, np.int8).view(type("Long", (np.ndarray,), says(long_text))),
    "no repr": lambda: type("Raises", (int,), says(lambda *_: 1 / 0))(-1),
    "a repr that is none": lambda: type("Five", (float,), says(lambda *_: 5))(-1),
    "a repr that interrupts": lambda: type("Stops", (float,), says(lambda *_: sys.exit()))(-1),
    "a repr that recurses": lambda: type("Recurses", (), says(recurses))(),
    "a list whose repr recurses": lambda: type("Recurses", (list,), says(recurses))([1.0]),
    "a long str": long_text,
    "words": lambda: " a\n" * (LONG // 3),
    "blanks": lambda: " " * LONG,
    "a long str_": lambda: np.str_("y" * (LONG // 10)),
    "a long bytes_": lambda: np.bytes_(b"y" * LONG),
    "long bytes": lambda: bytes(LONG),
    "a void": lambda: np.void(bytes(LONG)),
    "long lists": lambda: [[0.5] * 10**5] * 4,
    "nested": lambda: [["x" * LONG]],
    "a nest": lambda: [[[[[[[[1, 2], 3], 4], 5], 6], 7], 8], [[1, 2], [3, 4]]],
    "endless": lambda: (x := [1], x.append(x), x)[-1],
    "a large int": lambda: -(1 << 10**7),
    "large ints": lambda: (1 << 10**6, -(1 << 10**6)),
    "a long name": lambda: type("N" * LONG, (), {})(),
    "a name in lines": lambda: type("N\n" * 1000, (float,), {})(-1),
    "a metaclass": lambda: Meta("Meta", (float,), {})(-1),
    "a class of it": lambda: Meta("Meta", (), {}),
    "no name": lambda: Nameless("Nameless", (float,), {})(-1),
    "a wide record": lambda: np.zeros(1, [(f"f{i}", "i1") for i in range(10_000)]),
    "surrogates": lambda: "\ud800" * 1000,
    "NULs": lambda: "\0" * 1000,
}


@pytest.mark.sampled
@pytest.mark.parametrize("thing", THINGS)
def test_a_message_is_short_whatever_stands_in_it(thing):
    made = THINGS[thing]()
    # NumPy makes an array of a tensor, and a long text or a list takes its time; the rest takes none.
    places = [p for p in PLACES if "tensor" not in p and " t" not in p and "values" not in p]
    assert len(places) > 25
    begin = time.perf_counter()
    for place in places:
        try:
            PLACES[place](Arrays(), made)
        except (TypeError, ValueError, OverflowError, Stop) as error:
            text = "" if isinstance(error, Stop) else str(error)
            assert len(text) < 500, (place, text[:1000])
            assert "\n" not in text, place
    # A copy of a text of that length takes a tenth of a second, its repr half of one.
    assert time.perf_counter() - begin < 10


def test_a_number_is_written_by_its_own_class():
    x = np.ones(2)
    for thing, text in (
        (type("Own", (int,), says(long_text))(-3), "found Own -3;"),
        (type("Own", (float,), says(long_text))(-0.5), "found Own -0.5;"),
        (np.float64(-0.5), "found float64 -0.5;"),
        (np.float32(-0.5), r"found float32 np.float32\(-0.5\);|found float32 -0.5;"),
        (-(10**5000), "found int of 16610 bits;"),
        (np.array(-1), "found 0-d array -1 of dtype int64;"),
    ):
        with pytest.raises(ValueError, match=text):
            gc.clip_by_norm(x, thing)
    for thing, text in (
        ([1, (2.0, None, "a")], r"found list \[1, \(2.0, None, 'a'\)\];"),
        ((1, [x]), r"found tuple \(1, \[ndarray\]\);"),
        (list(range(20)), r"found list \[\.\.\.\];"),
        ("a" * 200, "found str 'a{79}...;"),
        ("a\nb", r"found str 'a\\nb';"),
        ((5,), r"found tuple \(5,\);"),
    ):
        with pytest.raises(TypeError, match=text):
            gc.clip_by_norm(x, 1.0, out=thing)


@pytest.mark.parametrize("digits", [0, 640, 4300])
def test_a_huge_int_is_a_limit_or_a_short_message(digits):
    x, before = np.array([3.0, 4.0]), sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        huge = 10**5000
        assert gc.clip_by_norm(x, huge).tolist() == [3, 4]
        assert gc.clip_by_value(x, -huge, huge).tolist() == [3, 4]
        assert gc.clip_by_value(np.arange(3), -huge, huge).tolist() == [0, 1, 2]
        assert gc.norm(x, huge) == 4
        assert np.isinf(gc.clip_by_global_norm([x], 1.0, huge)[1])
        for call in (
            lambda: gc.clip_by_norm(x, -huge),
            lambda: gc.clip_by_norm(x, 1.0, huge),
            lambda: gc.norm(x, -huge),
            lambda: gc.norm(x, axis=(huge,)),
            lambda: gc.norm(x, keepdims=huge),
            lambda: gc.clip_by_norm(x, 1.0, None, huge),
            lambda: gc.clip_by_norm(x, 1.0, out=huge),
            lambda: gc.global_norm(huge),
            lambda: gc.global_norm([x, huge]),
            lambda: gc.set_num_threads(huge),
            lambda: gc.IndexedSlices(x, [0, 1], (huge,)),
            lambda: gc.IndexedSlices(x, [0, 1], (-huge,)),
            lambda: gc.IndexedSlices(x, [0, 1], (huge, huge)),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            assert len(str(caught.value)) < 300
            assert "Exceeds the limit" not in str(caught.value)
    finally:
        sys.set_int_max_str_digits(before)


def test_a_name_is_shown_as_far_as_it_helps():
    x = np.ones(2)
    for name, shown in (
        ("layer/1", "'layer/1'"),
        ("a" * 300, f"'{'a' * 200}...'"),
        ("a\n b\t\0c", "'a b \0c'"),
        ("\ud800", "'\ufffd+'"),
        ("", "''"),
        (type("Str", (str,), {"__str__": long_text, "__getitem__": long_text, "__len__": long_text})("own"), "'own'"),
    ):
        with pytest.raises(ValueError, match=f"^clip_by_norm {shown}: clip_norm: found float -1.0"):
            gc.clip_by_norm(x, -1.0, name=name)

"""Views of one piece of memory that overlap in every way: inputs and outputs of tests."""

from hypothesis import strategies as st

# Of 60 elements, 20 each.
WINDOWS = [
    *(slice(0, 20), slice(1, 21), slice(3, 23), slice(19, 39)),
    *(slice(0, 40, 2), slice(1, 40, 2), slice(0, 60, 3)),
    *(slice(19, None, -1), slice(20, 0, -1), slice(39, 19, -1), slice(38, None, -2)),
]

PARTS = st.tuples(st.integers(0, 4), st.sampled_from([1, 2]), st.sampled_from([1, -1]))
VIEWS = st.tuples(PARTS, PARTS, st.booleans())


def window(room, view):
    """Four rows and four columns, from anywhere, at any step and in either direction, transposed or not."""
    rows, columns = (slice(o, o + 4 * step, step) for o, step, _ in view[:2])
    part = room[rows, columns][:: view[0][2], :: view[1][2]]
    return part.T if view[2] else part

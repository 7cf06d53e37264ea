"""How much of the suite a run covers: the variable GRADCLIP_TEST_PROFILE.

``fast``, of the README's test command, runs a sample of long families of cases. ``whole``, of `make nightly`, runs all.
``thorough`` also has hypothesis draw many more examples, and others each time.
"""

import math
import os
import zlib

PROFILE = os.environ.get("GRADCLIP_TEST_PROFILE", "fast")
IS_WHOLE = PROFILE != "fast"
#: Of a family of cases the sample has one in four, but at least three.
_ONE_IN, _FEWEST = 4, 3


def amount(fast: int, whole: int) -> int:
    """A number of repetitions: the first one under the profile ``fast``, the second one under the others."""
    return whole if IS_WHOLE else fast


def not_in_sample(names: list[str]) -> list[str]:
    """The cases of a family that the sample leaves out, the same ones each time.

    They are chosen by a hash of their names, since those at equal distances could all have one dtype.
    """
    by_hash = sorted(names, key=lambda name: zlib.crc32(name.partition("[")[2].encode()))
    return by_hash[max(math.ceil(len(names) / _ONE_IN), _FEWEST) :]

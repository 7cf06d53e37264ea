"""`gradclip.tree` on arrays of CuPy: leaf by leaf the results of the CPU."""

import contextlib

import numpy as np
import pytest
from gpu_arrays import check

pytestmark = pytest.mark.optree

with contextlib.suppress(ImportError):  # then these tests are not collected
    import gradclip.tree as gt
    import optree

CALLS = {
    "global_norm": lambda tree: gt.global_norm(tree),
    "clip_by_global_norm": lambda tree: gt.clip_by_global_norm(tree, 6.5),
    "clip_by_value": lambda tree: gt.clip_by_value(tree, -1.0, 5.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_leaves_are_those_of_the_cpu(gpu, name):
    def leaves(bias, kernel):
        result = CALLS[name]({"head": None, "layers": [bias, (kernel,)]})
        return optree.tree_leaves(result, none_is_leaf=True)

    check(gpu, leaves, np.array([3.0, -4.0], np.float32), np.array([[12.0]]))

"""The types that a type checker sees: `make lint` checks this file too."""

import gradclip as gc
import numpy as np
import numpy.typing as npt


def test_an_unpacked_clip_has_the_types_of_its_results() -> None:
    gradients: list[npt.NDArray[np.float32]] = [np.ones(3, np.float32), np.ones((3, 2), np.float32)]
    clipped, norm = gc.clip_by_global_norm(gradients, 1.5)
    assert [(g - 1).shape for g in clipped] == [(3,), (3, 2)]  # no entry is typed as maybe None
    number: float = norm
    text: str = norm  # type: ignore[assignment]  # an unused `ignore` is an error, so the norm is not typed as Any
    assert [number, text] == [3.0, 3.0]


def test_axes_may_be_an_int_a_sequence_or_an_array() -> None:
    x = np.ones((2, 3), np.float32)
    for clipped in (
        gc.clip_by_norm(x, 1, axes=1),
        gc.clip_by_norm(x, 1, axes=[np.int64(1)]),
        gc.clip_by_norm(x, 1, axes=range(1, 2)),
        gc.clip_by_norm(x, 1, axes=np.array([1])),
    ):
        assert clipped.shape == (2, 3)

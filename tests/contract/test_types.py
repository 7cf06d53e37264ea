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

"""The names of all kernels, for tests that build them."""

from gradclip._cuda._words import ITEMSIZES, MOVED_AS, ORDERED, TYPES, columns_at_once


def instantiations() -> list[str]:
    """List all kernels that there are, as C++ names them."""
    real = [name for name in TYPES[:4] if name]
    names = [f"sums<{name}, {deep}>" for name in real for deep in ("false", "true")]
    untyped = ("first", "powers", "power_ends", "given", "columns", "column_norms", "largest", "singular", "conversion")
    names += [f"{kernel}<void>" for kernel in untyped]
    names += [f"ends<{flag}>" for flag in ("false", "true")] + [f"slices<{team}>" for team in (32, 256)]
    names += [f"rows<{name}, {team}>" for name in real for team in (4, 8, 16, 32, 256)]
    names += [f"scale_slices<{name}, {team}>" for name in real for team in (4, 8, 16, 32)]
    names += [f"{kernel}<{name}>" for kernel in ("scale", "magnitudes") for name in real]
    typed = [
        f"{name}, {columns}"
        for name, itemsize in zip(real, ITEMSIZES, strict=False)
        for columns in (1, columns_at_once(itemsize))
    ]
    names += [f"{kernel}<{columns}>" for kernel in ("columns_of", "scale_columns") for columns in typed]
    names += [f"clip<{TYPES[code]}>" for code in ORDERED]
    return names + [f"copy<{name}>" for name in MOVED_AS.values()]

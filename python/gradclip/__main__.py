"""The command ``gradclip``: norms of the tensors in files.

::

    gradclip norms model.safetensors --top 10
    gradclip diff before.npz after.npz
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import sys
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

import gradclip as gc
from gradclip import _core
from gradclip._exchange import to_float
from gradclip._files import Block, FileError, Order, StoredTensor, reason, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Exit statuses.
FINE, NOT_FINITE, UNREADABLE = 0, 1, 2
#: Shells give this status to a program that SIGINT ends.
INTERRUPTED = 130
#: Bars of a picture. Many programs show no picture of more than 65,535 pixels, which 2,400 bars take.
PLOTTED_MOST = 1000


@dataclass(frozen=True)
class Summary:
    """A row of the table: one tensor. Numbers are None where gradclip lacks the dtype."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    norm: float | None = None
    rms: float | None = None
    largest: float | None = None
    nan: int | None = None
    infinite: int | None = None
    #: Of a difference: its norm over that of the old tensor.
    relative: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite."""
        return not (self.nan or self.infinite)


def summarize(tensor: StoredTensor, total: NormOfBlocks, told: Callable[[int], None]) -> Summary:
    """Read a tensor once, and add it to the global norm."""
    if tensor.blocks is None:
        return Summary(tensor.name, tensor.dtype, tensor.shape)
    return _summary(tensor, tensor.blocks(tensor.order), total, told)[0]


def summarize_difference(
    old: StoredTensor, new: StoredTensor, total: NormOfBlocks, told: Callable[[int], None]
) -> Summary:
    """Read two tensors of one shape once, and summarize new - old as float64, where it may be infinite."""
    dtype = new.dtype if old.dtype == new.dtype else f"{old.dtype} to {new.dtype}"
    if old.blocks is None or new.blocks is None:
        return Summary(new.name, dtype, new.shape)
    before = NormOfBlocks(total.order)
    made, change = _summary(new, _differences(old, new, before), total, told)
    made = replace(made, dtype=dtype)
    return replace(made, relative=_ratio(*change.norm(), *before.norm()))


def _ratio(value: float, exponent: float, old_value: float, old_exponent: float) -> float:
    """Return the ratio of two norms, each ``value * 2**exponent``, which may lie beyond float64's range."""
    if old_value:
        return to_float(value / old_value, exponent - old_exponent)
    return value if math.isnan(value) else math.inf if value else 0.0


def _differences(old: StoredTensor, new: StoredTensor, before: NormOfBlocks) -> Iterator[Block]:
    """Subtract block by block; the blocks of the two may have other lengths. ``before`` gets the old blocks."""
    # Files that are mapped give any order, archives give another order than their own with more work.
    along = old.order if old.is_in_archive else new.order
    a, b = _Reader(old, along), _Reader(new, along)
    while count := min(a.ready(), b.ready()):
        x, y = a.take(count), b.take(count)
        before.add(x)
        yield _subtract(y, x)


def _subtract(y: Block, x: Block) -> Block:
    """Return ``y - x`` as float64, or complex128, rounded once. Beside a float, an integer is first made a float64."""
    if {x.dtype.kind, y.dtype.kind} <= set("biu"):
        # By halves, since float64 may lack integers of 64 bits.
        (high_y, low_y), (high_x, low_x) = _halves(y), _halves(x)
        return np.asarray((high_y - high_x) * 2.0**32 + (low_y - low_x))
    wide = np.complex128 if "c" in {x.dtype.kind, y.dtype.kind} else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(y.astype(wide) - x.astype(wide))


def _halves(integers: Block) -> tuple[Block, Block]:
    """Return the upper and the lower 32 bits, as float64."""
    wide = integers.astype(np.uint64 if integers.dtype.kind == "u" else np.int64)
    return (wide >> 32).astype(np.float64), (wide & 0xFFFFFFFF).astype(np.float64)


class _Reader:
    """Hands out the elements of a tensor in pieces of any length."""

    def __init__(self, tensor: StoredTensor, order: Order) -> None:
        self._blocks = tensor.blocks(order) if tensor.blocks else iter(())
        self._rest: Block = np.empty(0)

    def ready(self) -> int:
        """Return the number of elements that can be taken at once; 0 at the end."""
        if not len(self._rest):
            self._rest = next(self._blocks, self._rest)
        return len(self._rest)

    def take(self, count: int) -> Block:
        """Take the next elements."""
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def _summary(
    tensor: StoredTensor, blocks: Iterator[Block], total: NormOfBlocks, told: Callable[[int], None]
) -> tuple[Summary, NormOfBlocks]:
    """Return the row of a table, and the norm in it."""
    squares = NormOfBlocks(2.0)
    powers = squares if total.order == 2 else NormOfBlocks(total.order)  # noqa: PLR2004
    largest, nan, infinite = [0.0], 0, 0
    for block in blocks:
        squares.add(block)
        if powers is not squares:
            powers.add(block)
        largest.append(float(gc.norm(block, math.inf)))
        if not math.isfinite(largest[-1]):
            are_nan = np.isnan(block)
            nan += int(np.count_nonzero(are_nan))
            infinite += int(np.count_nonzero(np.isinf(block) & ~are_nan))
        told(len(block))
    top = float(gc.norm(np.array(largest), math.inf))
    total.merge(powers)
    # A norm beyond float64 has a mean that float64 holds.
    value, exponent = squares.norm()
    rms = to_float(value / math.sqrt(tensor.size or 1), exponent)
    norm = to_float(*powers.norm())
    return Summary(tensor.name, tensor.dtype, tensor.shape, norm, rms, top, nan, infinite), powers


class NormOfBlocks:
    """The norm of blocks as one, which may lie beyond float64's range."""

    def __init__(self, order: float) -> None:
        self.order = order
        self._sums = [_sums([], order)]

    def add(self, block: Block) -> None:
        """Add a block of any size."""
        self._sums.append(_sums([block], self.order))

    def merge(self, other: NormOfBlocks) -> None:
        """Add the blocks of another norm."""
        self._sums.append(other._merged()[None])

    def norm(self) -> tuple[float, float]:
        """Return ``value, exponent``: the norm is ``value * 2**exponent``."""
        value, exponent = _core.roots_of_power_sums(self._merged(), self.order)[0].tolist()
        return value, exponent

    def _merged(self) -> Block:
        return _core.merge_power_sums(np.concatenate(self._sums), self.order)


def _sums(blocks: list[Block], order: float) -> Block:
    """Return the sums of powers of blocks as one."""
    return _core.power_sums("norm", blocks, None, order, False, False)[0]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, after a second, if tqdm is installed."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from tqdm import tqdm  # noqa: PLC0415 (of an extra)
    except ModuleNotFoundError:
        yield lambda _: None
        return
    with tqdm(total=total, unit=" elements", unit_scale=True, delay=1, leave=False) as bar:

        def told(count: int) -> None:
            bar.update(count)

        yield told


class Session:
    """One run of the command: collects what could not be read, and the norm of all tensors as one."""

    def __init__(self, order: float, *, keeps_integers: bool) -> None:
        self.errors: list[str] = []
        self.total = NormOfBlocks(order)
        self._keeps_integers = keeps_integers

    def _total_of(self, *tensors: StoredTensor) -> NormOfBlocks:
        """Return the norm to which a tensor is added, or the difference of two."""
        keeps = self._keeps_integers and all(tensor.is_integer for tensor in tensors)
        return NormOfBlocks(self.total.order) if keeps else self.total

    @property
    def failed(self) -> bool:
        """Whether something could not be read."""
        return bool(self.errors)

    def complain(self, text: object) -> None:
        """Tell why something cannot be read; the run goes on."""
        self.errors.append(str(text))
        _write(f"gradclip: {_printable(str(text))}", sys.stderr)  # if this fails, the exit status still tells

    def tensors(self, path: Path, opened: ExitStack) -> list[StoredTensor]:
        """List the tensors of a file, which stays open, without those that cannot be read."""
        try:
            found = tensors_of(path, opened, lambda text: self.complain(f"{path}: {text}"))
        except FileError as error:
            self.complain(f"{path}: {error}")
            return []
        for name, count in Counter(tensor.name for tensor in found).items():
            if count > 1:
                self.complain(f"{path}: {count} tensors have the name {name!r}")
        return found

    def norms(self, files: Sequence[Path]) -> list[Summary]:
        """Summarize the tensors of files."""
        found = []
        for path in files:
            with ExitStack() as opened:
                tensors = self.tensors(path, opened)
                told = opened.enter_context(_progress(sum(tensor.size for tensor in tensors)))
                for tensor in tensors:
                    try:
                        summary = summarize(tensor, self._total_of(tensor), told)
                    except (FileError, OSError) as error:
                        self.complain(f"{path}: {error}")
                        continue
                    found.append(replace(summary, name=f"{path}:{summary.name}") if len(files) > 1 else summary)
        return found

    def differences(self, old: Path, new: Path) -> list[Summary]:
        """Summarize the differences of tensors with one name."""
        with ExitStack() as opened:
            return self._differences(old, new, opened)

    def _differences(self, old: Path, new: Path, opened: ExitStack) -> list[Summary]:
        lists = [self.tensors(path, opened) for path in (old, new)]
        if old.suffix.lower() == new.suffix.lower() == ".npy":
            # Their tensors have the names of the files.
            lists[0] = [replace(tensor, name=new.stem) for tensor in lists[0]]
        before, after = ({tensor.name: tensor for tensor in tensors} for tensors in lists)
        if not self.failed:
            for name in {**before, **after}:
                if name not in before or name not in after:
                    self.complain(f"{name}: is in {old if name in before else new} alone")
        found = []
        told = opened.enter_context(_progress(sum(tensor.size for tensor in after.values())))
        for name in after:
            if name not in before:
                continue
            if before[name].shape != after[name].shape:
                self.complain(f"{name}: has shape {before[name].shape} in {old}, {after[name].shape} in {new}")
                continue
            try:
                old_tensor, new_tensor = before[name], after[name]
                total = self._total_of(old_tensor, new_tensor)
                found.append(summarize_difference(old_tensor, new_tensor, total, told))
            except (FileError, OSError) as error:
                self.complain(f"{name}: {error}")
        return found


def _printable(name: str) -> str:
    """Escape the characters of a name that would control the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def table(summaries: Sequence[Summary], total: float | None, *, relative: bool) -> str:
    """Align the summaries in columns, the global norm last if it is known."""
    head = ["name", "dtype", "shape", "norm", "rms", "largest", "NaN", "infinite", *(["relative"] if relative else [])]
    rows = [head]
    for each in summaries:
        numbers = [each.norm, each.rms, each.largest]
        counts = [each.nan, each.infinite]
        rows.append(
            [
                _printable(each.name),
                each.dtype,
                "x".join(map(str, each.shape)) or "()",
                *("-" if number is None else f"{number:.6g}" for number in numbers),
                *("-" if count is None else str(count) for count in counts),
                *(["-" if each.relative is None else f"{each.relative:.3g}"] if relative else []),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    left = 3
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, *([] if total is None else [f"global norm {total:.17g}"])])


def document(summaries: Sequence[Summary], total: float | None, order: float, errors: Sequence[str]) -> str:
    """Write JSON. Numbers that are not finite become strings, since JSON has none."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    tensors = [{key: plain(value) for key, value in vars(each).items()} for each in summaries]
    if all(each.relative is None for each in summaries):
        for tensor in tensors:
            del tensor["relative"]
    found = {"ord": plain(order), "global_norm": plain(total), "tensors": tensors}
    return json.dumps({**found, "errors": list(errors)} if errors else found, indent=2)


def plot(summaries: Sequence[Summary], path: Path) -> None:
    """Draw the norms by tensor."""
    if path.is_dir():
        raise FileError("found a directory; allowed: a file with a suffix such as .png")
    try:
        import matplotlib as mpl  # noqa: PLC0415 (of an extra)
    except ModuleNotFoundError as error:
        raise FileError("--plot needs matplotlib: pip install matplotlib") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    shown = [each for each in summaries if each.norm is not None and 0 < each.norm < math.inf]
    rest = len(summaries) - len(shown)
    title = f"Norms by tensor (left out as 0, inf, NaN or unknown: {rest})" if rest else "Norms by tensor"
    if len(shown) > PLOTTED_MOST:
        shown = sorted(shown, key=lambda each: -(each.norm or 0.0))[:PLOTTED_MOST]
        title += f"\nThe {PLOTTED_MOST} largest norms"
    figure, axes = plt.subplots(figsize=(8, 1.5 + 0.22 * len(shown)), layout="constrained")
    axes.barh(range(len(shown)), [each.norm or 0.0 for each in shown], color="#0072B2")
    axes.set_yticks(range(len(shown)), [_printable(each.name) for each in shown], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set(xscale="log" if shown else "linear", xlabel="norm", title=title)
    axes.grid(axis="x", alpha=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that the font lacks, of names longer than the picture
        figure.savefig(path, dpi=120)


def _order(text: str) -> float:
    try:
        value = float(text)
        _sums([], value)
    except ValueError as error:
        allowed = "a number above 0 and up to 1000, or inf"
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: {allowed}") from error
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: an integer of at least 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(
        prog="gradclip", description="Norms of the tensors in .npy, .npz and .safetensors files."
    )
    made.add_argument("--version", action="version", version=f"gradclip {gc.__version__}")
    commands = made.add_subparsers(dest="command", required=True)
    status = (
        "Exit status: 0, 1 if an element or a difference is not finite, 2 if a file cannot be read or written "
        "or a setting is invalid, "
        "130 after Ctrl-C."
    )
    norms = commands.add_parser("norms", help="print the norm of each tensor, and the global norm", epilog=status)
    formats = "a .npy, .npz or .safetensors file"
    norms.add_argument("files", nargs="+", type=Path, metavar="FILE", help=formats)
    diff = commands.add_parser("diff", help="print the norms of NEW - OLD, for tensors of the same name", epilog=status)
    diff.add_argument("old", type=Path, metavar="OLD", help=f"{formats}, which is subtracted")
    diff.add_argument("new", type=Path, metavar="NEW", help=formats)
    for each in (norms, diff):
        each.add_argument("--ord", type=_order, default=2.0, metavar="P", help="order, above 0 up to 1000, or inf [2]")
        each.add_argument(
            "--integers",
            choices=["count", "keep"],
            default="count",
            help="whether integer and boolean tensors, such as a step counter, count in the global norm [count]",
        )
        each.add_argument("--top", type=_count, metavar="N", help="list only the N tensors with the largest norms")
        each.add_argument("--json", action="store_true", help="write JSON")
        each.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the norms by tensor")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _write(text: str, stream: TextIO | None) -> OSError | None:
    """Print text to a standard stream. Return the error, unless a reader such as ``head`` has closed the stream."""
    if stream is None:  # Python was started without it
        return None
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except OSError as error:
        # Python would write the rest at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        # Windows reports a closed pipe as an invalid argument.
        is_closed = isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)
        return None if is_closed else error
    return None


def show(text: str, session: Session) -> None:
    """Print the result."""
    if error := _write(text, sys.stdout):
        session.complain(f"the output cannot be written: {error.strerror}")


def run(arguments: Sequence[str] | None) -> int:
    """Run the command to its end."""
    try:
        _sums([], 2.0)  # reads the settings
    except ValueError as error:
        _write(f"gradclip: {error}", sys.stderr)
        return UNREADABLE
    given = parser().parse_args(arguments)
    session = Session(given.ord, keeps_integers=given.integers == "keep")
    is_difference = given.command == "diff"
    found = session.differences(given.old, given.new) if is_difference else session.norms(given.files)
    # Without a dtype that gradclip has, the norm is not known.
    is_known = not session.failed and (not found or any(each.norm is not None for each in found))
    total = to_float(*session.total.norm()) if is_known else None
    listed = found
    if given.top:
        # Norms that are not finite come first, tensors without a norm last.
        listed = sorted(found, key=lambda each: (each.norm is None, each.is_finite, -(each.norm or 0.0)))[: given.top]
    if given.json:
        show(document(listed, total, given.ord, session.errors), session)
    elif listed or not session.failed:
        show(table(listed, total, relative=is_difference), session)
    if given.plot:
        try:
            plot(listed, given.plot)
        except (FileError, OSError, ValueError) as error:
            session.complain(f"{given.plot}: {reason(error)}")
    if session.failed:
        return UNREADABLE
    return FINE if all(each.is_finite for each in found) else NOT_FINITE


if __name__ == "__main__":
    sys.exit(main())

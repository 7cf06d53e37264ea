"""The command ``gradclip``: its output about files, and its exit status."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import types
import warnings
import zipfile
from pathlib import Path

import gradclip as gc
import ml_dtypes
import numpy as np
import pytest
import safetensors
from gradclip import __main__ as command
from gradclip import _files


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "encoder/weight": rng.standard_normal((300, 700)).astype(np.float32),
        "encoder/bias": rng.standard_normal(300),
        "half": rng.standard_normal((7, 3)).astype(np.float16),
        "complex": (rng.standard_normal(9) + 1j * rng.standard_normal(9)).astype(np.complex64),
        "steps": np.array(12345678901),
        "mask": rng.random(40) < 0.5,
        "fortran": np.asfortranarray(rng.standard_normal((4, 5))),
        "swapped": rng.standard_normal(6).astype(">f8"),
        "nothing": np.zeros((0, 3), np.float32),
    }


CODES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<c8": "C64", "<i8": "I64", "|b1": "BOOL", "<V2": "BF16"}


def write_safetensors(path, arrays, extra=None):
    """A second implementation of the format: a length, a JSON header, the bytes."""
    header, data = {"__metadata__": {"format": "np"}, **(extra or {})}, b""
    for name, array in arrays.items():
        code = "BF16" if array.dtype == ml_dtypes.bfloat16 else CODES[array.dtype.str]
        stop = len(data) + array.nbytes
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [len(data), stop]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write(kind, path, arrays):
    path = path / {"stored": "a.npz", "compressed": "a.npz", "safetensors": "a.safetensors"}[kind]
    if kind == "safetensors":
        write_safetensors(path, arrays)
    else:
        (np.savez if kind == "stored" else np.savez_compressed)(path, **arrays)
    return path


def run(*arguments, capsys):
    status = command.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(params=["stored", "compressed", "safetensors"])
def kind(request):
    return request.param


@pytest.mark.sampled
@pytest.mark.parametrize("order", [2, 1, 3.5, math.inf])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_norms_are_those_of_the_arrays(kind, order, block, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_files, "BLOCK_BYTES", block)
    arrays = tensors()
    if kind == "safetensors":
        arrays["swapped"] = arrays["swapped"].astype("<f8")
        arrays["fortran"] = arrays["fortran"].copy("C")
        arrays["brain"] = arrays["half"].astype(ml_dtypes.bfloat16)
    status, out, err = run("norms", write(kind, tmp_path, arrays), "--json", "--ord", order, capsys=capsys)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["ord"] == (order if math.isfinite(order) else "inf")
    assert found["global_norm"] == pytest.approx(gc.global_norm(list(arrays.values()), ord=order), rel=1e-14)
    assert [tensor["name"] for tensor in found["tensors"]] == list(arrays)
    for tensor in found["tensors"]:
        array = arrays[tensor["name"]]
        assert (tensor["dtype"], tuple(tensor["shape"])) == (str(array.dtype), array.shape)
        assert tensor["norm"] == pytest.approx(gc.norm(array, order), rel=1e-14)
        assert tensor["rms"] == pytest.approx(gc.norm(array) / math.sqrt(max(array.size, 1)), rel=1e-14)
        assert tensor["largest"] == gc.norm(array, np.inf)
        assert (tensor["nan"], tensor["infinite"]) == (0, 0)
        assert "relative" not in tensor


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("value", [1.7e308, 5e-324])
@pytest.mark.parametrize("block", [16, 1 << 20])
def test_the_mean_of_numbers_whose_norm_no_float64_holds(value, block, order, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_files, "BLOCK_BYTES", block)
    np.save(tmp_path / "w.npy", np.full(9, value))
    status, out, _ = run("norms", tmp_path / "w.npy", "--json", "--ord", order, capsys=capsys)
    (tensor,) = json.loads(out)["tensors"]
    assert status == 0
    assert tensor["rms"] == pytest.approx(value, rel=1e-14)
    if value > 1:
        assert (tensor["norm"], tensor["infinite"]) == ("inf", 0)


def test_one_array_is_a_file_of_its_own(tmp_path, capsys):
    np.save(tmp_path / "w.npy", np.array([[3.0, 4.0]]))
    status, out, _ = run("norms", tmp_path / "w.npy", capsys=capsys)
    assert status == 0
    assert out.splitlines() == [
        "name  dtype    shape  norm      rms  largest  NaN  infinite",
        "w     float64  1x2       5  3.53553        4    0         0",
        "global norm 5",
    ]


def test_several_files_have_one_global_norm(tmp_path, capsys):
    for name, value in (("a", 3.0), ("b", 4.0)):
        np.save(tmp_path / f"{name}.npy", np.array([value]))
    status, out, _ = run("norms", tmp_path / "a.npy", tmp_path / "b.npy", "--json", capsys=capsys)
    found = json.loads(out)
    assert (status, found["global_norm"]) == (0, 5.0)
    assert [tensor["name"] for tensor in found["tensors"]] == [f"{tmp_path / 'a.npy'}:a", f"{tmp_path / 'b.npy'}:b"]


def test_what_is_not_finite_is_counted(kind, tmp_path, capsys):
    arrays = {
        "bad": np.array([1.0, np.nan, np.inf, -np.inf, np.nan, 2.0]),
        "pair": np.array([complex(np.nan, np.inf), complex(np.inf, 0), 1], np.complex64),
        "good": np.ones(3),
    }
    path = write(kind, tmp_path, arrays)
    status, out, _ = run("norms", path, "--json", capsys=capsys)
    found = json.loads(out)
    assert status == 1
    assert [(t["nan"], t["infinite"]) for t in found["tensors"]] == [(2, 2), (1, 1), (0, 0)]
    assert found["tensors"][0]["norm"] == found["global_norm"] == "nan"
    status, out, _ = run("norms", path, "--top", 1, capsys=capsys)
    assert status == 1
    assert out.splitlines()[1].split()[0] == "bad"


def test_the_largest_come_first(kind, tmp_path, capsys):
    path = write(kind, tmp_path, {"a": np.array([1.0]), "b": np.array([5.0]), "c": np.array([3.0])})
    _, out, _ = run("norms", path, "--top", 2, "--json", capsys=capsys)
    found = json.loads(out)
    assert [tensor["name"] for tensor in found["tensors"]] == ["b", "c"]
    assert found["global_norm"] == pytest.approx(math.sqrt(35))


def test_dtypes_that_are_lacking_are_listed(tmp_path, capsys):
    extra = {"eight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [16, 18]}}
    write_safetensors(tmp_path / "a.safetensors", {"w": np.array([3.0, 4.0])}, extra)
    with (tmp_path / "a.safetensors").open("ab") as file:
        file.write(bytes(2))
    np.savez(tmp_path / "a.npz", w=np.array([3.0, 4.0]), text=np.array(["a", "b"]))
    for name in ("a.safetensors", "a.npz"):
        status, out, _ = run("norms", tmp_path / name, capsys=capsys)
        assert status == 0
        assert any(line.split()[3:] == ["-"] * 5 for line in out.splitlines()[1:-1])
        assert out.splitlines()[-1] == "global norm 5"


@pytest.mark.parametrize(
    ("kind", "order"), [("stored", 2), ("stored", math.inf), ("compressed", 1), ("safetensors", 3.5)]
)
def test_differences(kind, order, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_files, "BLOCK_BYTES", 256)
    old, new = ({name: a for name, a in tensors(seed).items() if a.dtype.str in CODES} for seed in (0, 1))
    if kind == "safetensors":
        old["fortran"], new["fortran"] = old["fortran"].copy("C"), new["fortran"].copy("C")
    (tmp_path / "old").mkdir()
    paths = write(kind, tmp_path / "old", old), write(kind, tmp_path, new)
    status, out, err = run("diff", *paths, "--json", "--ord", order, capsys=capsys)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["ord"] == (order if math.isfinite(order) else "inf")
    changes = [np.subtract(new[n], old[n], dtype="c16" if new[n].dtype.kind == "c" else "f8") for n in new]
    assert found["global_norm"] == pytest.approx(gc.global_norm(changes, ord=order), rel=1e-13)
    for tensor, change in zip(found["tensors"], changes, strict=True):
        array, before = new[tensor["name"]], gc.norm(old[tensor["name"]], order)
        assert (tensor["dtype"], tuple(tensor["shape"])) == (str(array.dtype), array.shape)
        assert tensor["norm"] == pytest.approx(gc.norm(change, order), rel=1e-13)
        assert tensor["rms"] == pytest.approx(gc.norm(change) / math.sqrt(max(change.size, 1)), rel=1e-13)
        assert tensor["largest"] == gc.norm(change, np.inf)
        assert (tensor["nan"], tensor["infinite"]) == (0, 0)
        assert tensor["relative"] == pytest.approx(gc.norm(change, order) / before if before else 0.0, rel=1e-13)


def test_what_is_not_finite_in_the_new_file_is_counted(kind, tmp_path, capsys):
    (tmp_path / "old").mkdir()
    old = {"bad": np.ones(4), "good": np.array([3.0, 4.0])}
    new = {"bad": np.array([1.0, np.nan, np.inf, np.nan]), "good": np.array([3.0, 5.0])}
    paths = write(kind, tmp_path / "old", old), write(kind, tmp_path, new)
    status, out, err = run("diff", *paths, capsys=capsys)
    assert (status, err) == (1, "")
    assert [line.split() for line in out.splitlines()] == [
        ["name", "dtype", "shape", "norm", "rms", "largest", "NaN", "infinite", "relative"],
        ["bad", "float64", "4", "nan", "nan", "nan", "2", "1", "nan"],
        ["good", "float64", "2", "1", "0.707107", "1", "0", "0", "0.2"],
        ["global", "norm", "nan"],
    ]


@pytest.mark.parametrize("order", ["1", "2", "3", "inf"])
def test_norms_beyond_float64_are_compared(kind, order, tmp_path, capsys):
    (tmp_path / "old").mkdir()
    old = {"a": np.full(4, 1.6e308), "b": np.ones(2), "c": np.full(4, 1.6e308)}
    new = {"a": np.full(4, 1.2e308), "b": np.ones(2), "c": np.zeros(4)}
    paths = write(kind, tmp_path / "old", old), write(kind, tmp_path, new)
    status, out, err = run("diff", *paths, "--json", "--ord", order, capsys=capsys)
    assert (status, err) == (0, "")
    relative = {tensor["name"]: tensor["relative"] for tensor in json.loads(out)["tensors"]}
    assert relative == {"a": pytest.approx(0.25, rel=1e-12), "b": 0.0, "c": pytest.approx(1.0, rel=1e-12)}


@pytest.mark.parametrize("new_kind", ["stored", "compressed", "safetensors"])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_differences_of_arrays_in_other_orders(kind, new_kind, block, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_files, "BLOCK_BYTES", block)
    (tmp_path / "new").mkdir()
    rng = np.random.default_rng(0)
    shapes = {"matrix": (5, 7), "tensor": (3, 4, 5), "line": (1, 6), "empty": (4, 0), "number": ()}
    old = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    new = {name: array + rng.standard_normal(array.shape) for name, array in old.items()}
    for orders in ("CC", "CF", "FC", "FF"):
        files = []
        for which, folder, arrays, order in zip(
            (kind, new_kind), (tmp_path, tmp_path / "new"), (old, new), orders, strict=True
        ):
            laid = {name: np.array(array, order=order) for name, array in arrays.items()}
            files.append(write(which, folder, laid))
        status, out, err = run("diff", *files, "--json", capsys=capsys)
        assert (status, err) == (0, "")
        for tensor in json.loads(out)["tensors"]:
            name = tensor["name"]
            norm = gc.norm(new[name] - old[name])
            assert tensor["norm"] == pytest.approx(norm, rel=1e-13)
            assert tensor["relative"] == pytest.approx(norm / (gc.norm(old[name]) or 1.0), rel=1e-13)


@pytest.mark.parametrize("new_dtype", ["<i8", ">i8", "u8", "i1", "?"])
@pytest.mark.parametrize("old_dtype", ["i8", "u8", ">u8", "u4", "?"])
def test_differences_of_integers_are_rounded_once(old_dtype, new_dtype, tmp_path, capsys):
    values = [0, 1, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**53) - 1, -(2**63)]
    old, new = (
        np.array([value for value in values if int(np.array(value).astype(dtype)) == value], dtype)
        for dtype in (old_dtype, new_dtype)
    )
    pairs = [(int(x), int(y)) for x in old for y in new]
    np.savez(tmp_path / "a.npz", **{str(i): np.array([x], old_dtype) for i, (x, _) in enumerate(pairs)})
    np.savez(tmp_path / "b.npz", **{str(i): np.array([y], new_dtype) for i, (_, y) in enumerate(pairs)})
    status, out, err = run("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--json", capsys=capsys)
    assert (status, err) == (0, "")
    assert [tensor["norm"] for tensor in json.loads(out)["tensors"]] == [float(abs(y - x)) for x, y in pairs]


def test_a_difference_that_no_float64_holds_is_infinite(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.array([1e308, 1.0]))
    np.save(tmp_path / "b.npy", np.array([-1e308, 1.0]))
    status, out, err = run("diff", tmp_path / "a.npy", tmp_path / "b.npy", "--json", capsys=capsys)
    assert (status, err) == (1, "")
    assert json.loads(out)["tensors"][0]["infinite"] == 1


def test_differences_of_files_that_do_not_fit(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", same=np.ones(2), shape=np.ones(2), gone=np.ones(2))
    np.savez(tmp_path / "b.npz", same=np.ones(2), shape=np.ones(3), new=np.ones(2))
    status, out, err = run("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--json", capsys=capsys)
    assert status == 2
    assert [tensor["name"] for tensor in json.loads(out)["tensors"]] == ["same"]
    assert f"gone: is in {tmp_path / 'a.npz'} alone" in err
    assert f"new: is in {tmp_path / 'b.npz'} alone" in err
    assert f"shape: has shape (2,) in {tmp_path / 'a.npz'}, (3,) in {tmp_path / 'b.npz'}" in err


def npy_header(text):
    text += b" " * (64 - (10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def header(shape):
    return npy_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode())


def broken(tmp_path):
    np.save(tmp_path / "good.npy", np.arange(1000.0))
    good = (tmp_path / "good.npy").read_bytes()
    np.savez_compressed(tmp_path / "good.npz", w=np.random.default_rng(0).random(1000))
    packed = (tmp_path / "good.npz").read_bytes()
    files = {
        "missing.npy": None,
        "short.npy": good[:-8],
        "no_header.npy": b"nothing of it",
        "empty.npy": b"",
        "text.txt": b"text",
        "cut.npz": packed[: len(packed) // 2],
        "flipped.npz": packed[:200] + bytes(b ^ 0x55 for b in packed[200:400]) + packed[400:],
        "long.safetensors": (10**15).to_bytes(8, "little") + b"{}",
        "empty.safetensors": b"",
        "none.safetensors": (2).to_bytes(8, "little") + b"{}",
        "missing": None,
        "no_json.safetensors": (3).to_bytes(8, "little") + b"{{{",
        "list.safetensors": (2).to_bytes(8, "little") + b"[]",
        "offsets.safetensors": b"",
        "beyond.safetensors": b"",
        "fields.safetensors": b"",
        "overlap.safetensors": b"",
        "absurd.safetensors": b"",
        "axes.safetensors": b"",
        "negative.safetensors": b"",
        "absurd.npy": good.replace(b"(1000,), }       ", b"(10000000000,), }"),
    }
    for name, entries in {
        "offsets": [{"dtype": "F64", "shape": [3], "data_offsets": [0, 8]}],
        "beyond": [{"dtype": "F64", "shape": [3], "data_offsets": [0, 240]}],
        "fields": [{"dtype": "F64"}],
        "overlap": [{"dtype": "F64", "shape": [1], "data_offsets": [at, at + 8]} for at in (0, 4)],
        "absurd": [{"dtype": "F64", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 12]}],
        "axes": [{"dtype": "F64", "shape": [1] * 65, "data_offsets": [0, 8]}],
        "negative": [{"dtype": "F64", "shape": [-1], "data_offsets": [0, 12]}],
    }.items():
        text = json.dumps({f"w{i}": entry for i, entry in enumerate(entries)}).encode()
        files[f"{name}.safetensors"] = len(text).to_bytes(8, "little") + text + bytes(12)
    files["minus.npy"] = header("(-4,)") + bytes(32)
    files["axes.npy"] = header((1,) * 65) + bytes(8)
    files["true.npy"] = header("(True,)") + bytes(8)
    files["digits.npy"] = header(f"(0, 0x{'f' * 5000})")
    files["parentheses.npy"] = npy_header(b"(" * 9000)
    # The next member has enough bytes for the first one.
    with zipfile.ZipFile(tmp_path / "member.npz", "w") as archive:
        archive.writestr("a.npy", header("(40,)") + bytes(32))
        archive.writestr("b.npy", good)
    with zipfile.ZipFile(tmp_path / "no_array.npz", "w") as archive:
        archive.writestr("README.txt", "no array")
    files["member.npz"] = files["no_array.npz"] = None
    with zipfile.ZipFile(tmp_path / "encrypted.npz", "w") as archive:
        archive.writestr("a.npy", good)
    data = bytearray((tmp_path / "encrypted.npz").read_bytes())
    data[6] |= 1
    data[data.rfind(b"PK\x01\x02") + 8] |= 1
    files["encrypted.npz"] = bytes(data)
    for name, data in files.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
    (tmp_path / "directory.npy").mkdir()
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe.npy")  # opening it would wait for a writer
        (tmp_path / "endless.npz").symlink_to("/dev/zero")
        files |= dict.fromkeys(("pipe.npy", "endless.npz"))
    np.save(tmp_path / "objects.npy", np.array([None, 1], object), allow_pickle=True)
    return [*files, "directory.npy"]


def test_files_that_cannot_be_read_are_named_and_the_others_told(tmp_path, capsys):
    for name in broken(tmp_path):
        status, out, err = run("norms", tmp_path / name, tmp_path / "good.npy", capsys=capsys)
        assert status == 2, name
        assert err.startswith(f"gradclip: {tmp_path / name}: "), err
        assert err.count("\n") == 1, err
        assert "good.npy:good" in out
    _, _, err = run("norms", tmp_path / "digits.npy", tmp_path / "no_array.npz", capsys=capsys)
    assert f"found shape (0, an int of 20000 bits) in the header; allowed: integers from 0 to {sys.maxsize}\n" in err
    assert "found no array in the archive; allowed: at least one member whose name ends in .npy\n" in err
    _, _, err = run("norms", tmp_path / "missing", capsys=capsys)
    assert err.endswith("missing: No such file or directory\n")
    status, out, _ = run("norms", tmp_path / "objects.npy", capsys=capsys)  # nothing is unpickled
    assert status == 0
    assert out.splitlines()[1].split() == ["objects", "object", "2", "-", "-", "-", "-", "-"]


@pytest.mark.parametrize("fault", ["flipped", "stored", "short"])
def test_an_array_that_ends_in_a_fault_is_named_and_the_others_told(fault, tmp_path, capsys, monkeypatch):
    """The header is right, so the fault is found while the blocks are read."""
    monkeypatch.setattr(_files, "BLOCK_BYTES", 1 << 16)
    long = np.random.default_rng(0).random(100_000)
    path, whole = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez_compressed(whole, last=np.ones(2), long=long)
    if fault in {"flipped", "stored"}:
        (np.savez if fault == "stored" else np.savez_compressed)(path, last=np.ones(2), long=long)
        packed = path.read_bytes()
        half = len(packed) // 2
        path.write_bytes(packed[:half] + bytes(b ^ 0x55 for b in packed[half : half + 200]) + packed[half + 200 :])
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array, cut in (("last", np.ones(2), None), ("long", long, -80)):
                np.save(tmp_path / "one.npy", array)
                archive.writestr(f"{name}.npy", (tmp_path / "one.npy").read_bytes()[:cut])
    status, out, err = run("norms", path, "--json", capsys=capsys)
    assert status == 2
    assert err.startswith(f"gradclip: {path}: long.npy: ")
    assert [tensor["name"] for tensor in json.loads(out)["tensors"]] == ["last"]
    status, out, err = run("diff", whole, path, "--json", capsys=capsys)
    assert status == 2
    assert err.startswith("gradclip: long: long.npy: ")
    assert [tensor["name"] for tensor in json.loads(out)["tensors"]] == ["last"]


@pytest.mark.parametrize("kind", ["compressed", "safetensors"])
def test_a_file_is_opened_once_and_closed(kind, tmp_path, capsys, monkeypatch):
    """Its list of tensors is read as a whole at each opening: for each tensor, that would be quadratic."""
    path = write(kind, tmp_path, {f"w{i}": np.ones(3) for i in range(5)})
    events = []

    def watched(opens):
        @contextlib.contextmanager
        def watch(*arguments, **options):
            events.append("opened")
            with opens(*arguments, **options) as file:
                yield file
            events.append("closed")

        return watch

    monkeypatch.setattr(zipfile, "ZipFile", watched(zipfile.ZipFile))
    monkeypatch.setattr(safetensors, "safe_open", watched(safetensors.safe_open))
    assert run("norms", path, path, capsys=capsys)[0] == 0
    assert events == ["opened", "closed"] * 2
    events.clear()
    assert run("diff", path, path, capsys=capsys)[0] == 0
    assert events == ["opened"] * 2 + ["closed"] * 2


def test_a_dtype_that_changes_is_shown(tmp_path, capsys):
    for dtype in ("f8", "f4"):
        np.savez(tmp_path / f"{dtype}.npz", w=np.arange(3, dtype=dtype))
    status, out, _ = run("diff", tmp_path / "f8.npz", tmp_path / "f4.npz", capsys=capsys)
    assert status == 0
    assert "float64 to float32" in out


def test_a_directory_is_named(tmp_path, capsys):
    assert run("norms", tmp_path, capsys=capsys)[2] == f"gradclip: {tmp_path}: found a directory; allowed: a file\n"


def test_names_do_not_control_the_terminal(tmp_path, capsys):
    path = write("safetensors", tmp_path, {"a\x1b[31m\nb": np.ones(3)})
    status, out, _ = run("norms", path, capsys=capsys)
    assert status == 0
    assert "a\\x1b[31m\\nb" in out


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch):
    path = write("safetensors", tmp_path, {"w": np.ones(3)})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    status, _, err = run("norms", path, capsys=capsys)
    assert (status, err.count("pip install safetensors")) == (2, 1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (3, 1), (5, 0, 2), (1, 1, 9)])
@pytest.mark.parametrize("most", [1, 2, 5, 6, 100])
def test_boxes_cut_an_array_in_order(shape, most, order):
    array = np.arange(math.prod(shape)).reshape(shape)
    blocks = [array[box].reshape(-1, order=order) for box in _files.boxes(shape, most, order)]
    assert all(0 < len(block) <= most for block in blocks)
    expected = array.reshape(-1, order=order)
    np.testing.assert_array_equal(np.concatenate([*blocks, expected[:0]]), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norms", "a.npy", "--ord", "0"], "--ord: found '0'; allowed: a number above 0 and up to 1000, or inf"),
        (["norms", "a.npy", "--ord", "two"], "--ord: found 'two'; allowed: a number above 0 and up to 1000, or inf"),
        (["norms", "a.npy", "--ord", "2000"], "--ord: found '2000'; allowed: a number above 0 and up to 1000, or inf"),
        (["norms", "a.npy", "--top", "0"], "argument --top: found '0'; allowed: an integer of at least 1"),
        (["norms"], "the following arguments are required: FILE"),
        ([], "the following arguments are required: command"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["GRADCLIP_NUM_THREADS", "GRADCLIP_POOL_BYTES"])
def test_an_invalid_setting_is_an_error(name):
    done = subprocess.run(
        [sys.executable, "-m", "gradclip", "norms", "a.npy"],
        env={**os.environ, name: "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f'gradclip: environment variable {name}: found "none"')


def test_what_is_known_of_no_tensor(tmp_path, capsys):
    """A norm of 0 would look as if the tensors had been read."""
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    status, out, err = run("norms", tmp_path / "text.npy", capsys=capsys)
    assert (status, err) == (0, "")
    assert "global norm" not in out


def test_integers_need_not_count(kind, tmp_path, capsys):
    arrays = {"weight": np.array([3.0, 4.0]), "step": np.array(1234), "mask": np.array([True])}
    path = write(kind, tmp_path, arrays)
    for option, norm in (([], gc.global_norm(list(arrays.values()))), (["--integers", "keep"], 5.0)):
        status, out, _ = run("norms", path, "--json", *option, capsys=capsys)
        found = json.loads(out)
        assert (status, found["global_norm"]) == (0, norm)
        assert sorted(tensor["norm"] for tensor in found["tensors"]) == [1.0, 5.0, 1234.0]


def test_the_global_norm_loses_nothing_below_float64(kind, tmp_path, capsys):
    arrays = {f"a{i}": np.full(2, 5e-324) for i in range(40)}
    status, out, _ = run("norms", write(kind, tmp_path, arrays), "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["global_norm"] == gc.global_norm(list(arrays.values())) > 0


def test_it_runs_as_a_module(tmp_path):
    np.save(tmp_path / "w.npy", np.array([3.0, 4.0]))
    done = subprocess.run(
        [sys.executable, "-m", "gradclip", "norms", str(tmp_path / "w.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("global norm 5\n")


def test_a_plot_is_a_picture(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", **tensors())
    status, _, err = run("norms", tmp_path / "a.npz", "--plot", tmp_path / "a.png", capsys=capsys)
    assert (status, err) == (0, "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    status, _, err = run("norms", tmp_path / "a.npz", "--plot", tmp_path / "gone" / "a.png", capsys=capsys)
    assert status == 2
    assert err.startswith(f"gradclip: {tmp_path / 'gone' / 'a.png'}: ")


@pytest.mark.parametrize("name", ["", "."])
def test_a_plot_needs_the_name_of_a_file(name, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones(3))
    status, _, err = run("norms", tmp_path / "a.npy", "--plot", tmp_path / name, capsys=capsys)
    assert status == 2
    assert err.endswith(": found a directory; allowed: a file with a suffix such as .png\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_big_endian_integers_need_not_count(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", w=np.array([3.0, 4.0]), step=np.array([1000], ">i8"), small=np.array([9], ">u2"))
    _, out, _ = run("norms", tmp_path / "a.npz", "--integers", "keep", "--json", capsys=capsys)
    assert json.loads(out)["global_norm"] == 5.0


def test_a_difference_of_a_float_and_an_integer_counts(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", w=np.array([3.0]), x=np.array([1], "i4"), y=np.array([1]), z=np.array(["text"]))
    np.savez(tmp_path / "b.npz", w=np.array([6], "i4"), x=np.array([5.0]), y=np.array([100]), z=np.array([2.0]))
    _, out, _ = run("diff", tmp_path / "a.npz", tmp_path / "b.npz", "--integers", "keep", capsys=capsys)
    assert out.splitlines()[-1].split()[-1] == "5"
    assert "<U4 to float64" in out


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    np.save(tmp_path / "a.npy", np.ones(3))
    status, _, err = run("norms", tmp_path / "a.npy", "--plot", tmp_path / "a.png", capsys=capsys)
    assert status == 2
    assert "--plot needs matplotlib: pip install matplotlib" in err


@pytest.mark.parametrize(("value", "expected"), [(0.0, 0), (np.nan, 1)])
def test_a_plot_of_norms_that_no_logarithm_has(value, expected, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.full(3, value))
    status, _, err = run("norms", tmp_path / "a.npy", "--plot", tmp_path / "a.png", capsys=capsys)
    assert (status, err) == (expected, "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_has_the_names_of_the_table_and_tells_what_it_lacks(tmp_path, capsys):
    values = {"$\\foo$": 1.0, "one\n\x1b": 2.0, "zero": 0.0, "nan": np.nan, "inf": np.inf}
    np.savez(tmp_path / "a.npz", text=np.array(["a"]), **{name: np.array(value) for name, value in values.items()})
    status, out, err = run("norms", tmp_path / "a.npz", "--plot", tmp_path / "a.png", capsys=capsys)
    assert (status, err) == (1, "")
    (axes,) = sys.modules["matplotlib.pyplot"].gcf().axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["$\\foo$", "one\\n\\x1b"]
    assert all(label in out for label in labels)
    assert axes.get_title() == "Norms by tensor (left out as 0, inf, NaN or unknown: 4)"


def test_a_plot_of_many_tensors_has_the_largest(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "PLOTTED_MOST", 3)
    np.savez(tmp_path / "a.npz", **{f"\u65e5{i}": np.array(float(i)) for i in range(1, 6)})
    status, _, err = run("norms", tmp_path / "a.npz", "--plot", tmp_path / "a.png", capsys=capsys)
    assert (status, err) == (0, "")
    (axes,) = sys.modules["matplotlib.pyplot"].gcf().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["\u65e55", "\u65e54", "\u65e53"]
    assert axes.get_title() == "Norms by tensor\nThe 3 largest norms"


def test_there_is_no_global_norm_of_what_cannot_be_read(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones(4))
    (tmp_path / "b.npy").write_bytes(b"text")
    status, out, _ = run("norms", tmp_path / "b.npy", capsys=capsys)
    assert (status, out) == (2, "")
    status, out, _ = run("norms", tmp_path / "a.npy", tmp_path / "b.npy", capsys=capsys)
    assert status == 2
    assert len(out.splitlines()) == 2
    assert "global norm" not in out
    status, out, _ = run("norms", tmp_path / "a.npy", tmp_path / "b.npy", "--json", capsys=capsys)
    found = json.loads(out)
    assert (status, found["global_norm"], len(found["tensors"])) == (2, None, 1)
    (error,) = found["errors"]
    assert error.startswith(f"{tmp_path / 'b.npy'}: ")


def test_complaints_do_not_control_the_terminal(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", **{"one\n\x1b[31m": np.ones(2)})
    np.savez(tmp_path / "b.npz", two=np.ones(2))
    _, _, err = run("diff", tmp_path / "a.npz", tmp_path / "b.npz", capsys=capsys)
    assert len(err.splitlines()) == 2
    assert "\x1b" not in err


def test_differences_of_two_arrays_whose_files_have_other_names(tmp_path, capsys):
    np.save(tmp_path / "before.npy", np.array([3.0, 0.0]))
    np.save(tmp_path / "after.npy", np.array([3.0, 4.0]))
    status, out, err = run("diff", tmp_path / "before.npy", tmp_path / "after.npy", "--json", capsys=capsys)
    assert (status, err) == (0, "")
    (tensor,) = json.loads(out)["tensors"]
    assert (tensor["name"], tensor["norm"]) == ("after", 4.0)


@pytest.mark.skipif(sys.platform == "win32", reason="another system's pipes")
def test_an_output_that_nobody_reads_or_takes(tmp_path):
    np.savez(tmp_path / "a.npz", **{f"tens\xf6r{i}": np.ones(1) for i in range(3000)})
    line = [sys.executable, "-m", "gradclip", "norms", str(tmp_path / "a.npz")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)
    process.stderr.close()
    if (full_disk := Path("/dev/full")).exists():
        with full_disk.open("w") as full:
            done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            2,
            "gradclip: the output cannot be written: No space left on device\n",
        )
    done = subprocess.run(line, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"tens\xf6r0" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the stream")
def test_complaints_that_nobody_reads_change_no_exit_status(tmp_path):
    np.save(tmp_path / "a.npy", np.array([3.0, 4.0]))
    read, gone = [str(tmp_path / "a.npy")], [str(tmp_path / "gone.npy"), str(tmp_path / "gone2.npy")]
    full = ["/dev/full"] if Path("/dev/full").exists() else []
    for files, status in ((read, 0), (gone + read, 2)):
        for stderr in ("2>&-", *(f"2>{device}" for device in full)):
            line = f'exec "$@" {stderr}'
            command_line = ["sh", "-c", line, "sh", sys.executable, "-m", "gradclip", "norms", *files, "--json"]
            done = subprocess.run(command_line, stdout=subprocess.PIPE, text=True, check=False)
            assert done.returncode == status, (files, stderr)
            assert [each["norm"] for each in json.loads(done.stdout)["tensors"]] == [5.0]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradclip", "norms", *gone, *read], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    process.stderr.close()
    assert process.wait() == 2


def test_an_interrupt_ends_it_quietly(tmp_path, monkeypatch, capsys):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "tensors_of", interrupted)
    assert run("norms", tmp_path / "a.npy", capsys=capsys)[0] == 130


@pytest.mark.parametrize("has_bar", [True, False])
def test_a_terminal_gets_a_bar_if_it_takes_long(has_bar, tmp_path, capsys, monkeypatch):
    shown = []

    class Bar:
        def __init__(self, total, **options):
            shown.append(total)
            assert options["delay"] == 1

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self, count):
            shown.append(-count)

    np.savez(tmp_path / "a.npz", a=np.ones(30), b=np.ones((4, 5), np.int8))
    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar) if has_bar else None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, _, err = run("norms", tmp_path / "a.npz", capsys=capsys)
    assert (status, err) == (0, "")
    assert (shown[:1], sum(shown)) == (([50], 0) if has_bar else ([], 0))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_it_runs_on_a_terminal(tmp_path):
    np.save(tmp_path / "a.npy", np.array([3.0, 4.0]))
    parent, child = os.openpty()
    command_line = [sys.executable, "-m", "gradclip", "norms", tmp_path / "a.npy"]
    done = subprocess.run(command_line, check=False, stdout=child, stderr=child, timeout=60)
    os.close(child)
    text = os.read(parent, 4096).decode()
    os.close(parent)
    assert done.returncode == 0
    assert text.split()[-3:] == ["global", "norm", "5"]


def test_members_of_one_name_and_others_than_arrays(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", w=np.array([3.0, 4.0]))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the name that is there
        archive.writestr("README.txt", "no array")
        archive.writestr("w.npy", archive.read("w.npy"))
    status, out, err = run("norms", tmp_path / "a.npz", capsys=capsys)
    assert (status, err) == (2, f"gradclip: {tmp_path / 'a.npz'}: 2 tensors have the name 'w'\n")
    assert "README" not in out


def test_a_format_of_the_future_is_named(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones(3))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:6] + bytes([9, 0]) + data[8:])
    status, _, err = run("norms", tmp_path / "a.npy", capsys=capsys)
    assert (status, err) == (2, f"gradclip: {tmp_path / 'a.npy'}: version (9, 0) of the format is not supported\n")


def npy(array):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy tells that version 3 is new
        np.lib.format.write_array(file, array)
    return file.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_field_of_any_name_is_listed(method, tmp_path, capsys):
    names = ["plain", "gr\xf6\xdfe", "\u30b0\u30e9\u30c7", "\U0001f600", "back\\slash'"]
    fields = np.zeros(2, [(name, "<f8") for name in names])
    assert npy(fields)[6] == 3
    (tmp_path / "one.npy").write_bytes(npy(fields))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("fields.npy", npy(fields))
        archive.writestr("w.npy", npy(np.array([3.0, 4.0])))
    status, out, err = run("norms", tmp_path / "a.npz", tmp_path / "one.npy", "--json", capsys=capsys)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [(tensor["dtype"], tensor["norm"]) for tensor in found["tensors"]] == [
        (str(fields.dtype), None),
        ("float64", 5.0),
        (str(fields.dtype), None),
    ]
    assert found["global_norm"] == 5.0


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_cannot_be_read_are_named_and_the_others_told(method, tmp_path, capsys):
    members = {
        "long": npy(np.zeros(2, [(f"field number {i}", "<f8") for i in range(500)])),
        "cut": npy(np.ones(3))[:40],
        "no_array": b"text",
        "w": npy(np.array([3.0, 4.0])),
    }
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    np.savez(tmp_path / "b.npz", w=np.zeros(2), cut=np.ones(3), long=np.ones(3), no_array=np.ones(3))
    prefix = f"gradclip: {tmp_path / 'a.npz'}: "
    for arguments in (["norms", tmp_path / "a.npz"], ["diff", tmp_path / "b.npz", tmp_path / "a.npz"]):
        status, out, err = run(*arguments, "--json", capsys=capsys)
        lines = err.splitlines()
        assert (status, len(lines)) == (2, 3), err
        found = int.from_bytes(members["long"][8:10], "little")
        assert lines[0] == f"{prefix}long.npy: found a header of {found} bytes; allowed: at most 10000 bytes"
        assert lines[1] == f"{prefix}cut.npy: the file ends in its header"
        assert lines[2].startswith(f"{prefix}no_array.npy: ")
        found = json.loads(out)
        assert ([tensor["name"] for tensor in found["tensors"]], found["global_norm"]) == (["w"], None)
        assert found["tensors"][0]["norm"] == 5.0


def test_tensors_of_lacking_dtypes_have_no_difference(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    path = write("safetensors", tmp_path, {"w": np.ones(3), "half": np.ones(2, ml_dtypes.bfloat16)})
    status, out, err = run("diff", path, path, capsys=capsys)
    assert (status, err) == (0, "")
    assert next(line for line in out.splitlines() if "half" in line).split()[1:3] == ["BF16", "2"]


SIZE = 1 << 29

WATCH = """
import runpy, sys, threading, time
most, over = 0, False
def watch():
    global most
    while not over:
        lines = open("/proc/self/status").read().splitlines()
        most = max(most, next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
try:
    runpy.run_module("gradclip", run_name="__main__")
except SystemExit as end:
    status = end.code
over = True
thread.join()
print(most, file=sys.stderr)
sys.exit(status)
"""


def write_large(kind, folder):
    """A file with one tensor of 1 GiB of float32: zeros, and a 3 and a 4 at its ends."""
    data = np.lib.format.open_memmap(folder / "large.npy", "w+", np.float32, (SIZE // 4,))
    data[0], data[-1] = 3.0, 4.0
    if kind == "npy":
        return folder / "large.npy"
    path = folder / ("large.safetensors" if kind == "safetensors" else "large.npz")
    if kind == "safetensors":
        header = {"t": {"dtype": "F32", "shape": [SIZE // 4], "data_offsets": [0, SIZE]}}
        text = json.dumps(header).encode()
        with path.open("wb") as file:  # a file with a hole, as the one above
            file.write(len(text).to_bytes(8, "little") + text + data[:1].tobytes())
            file.seek(8 + len(text) + SIZE - 4)
            file.write(data[-1:].tobytes())
    else:
        method = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
            archive.write(folder / "large.npy", "t.npy")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what memory a process has")
@pytest.mark.parametrize("kind", ["npy", "stored", "compressed", "safetensors"])
def test_files_of_half_a_gibibyte_are_not_loaded_as_a_whole(kind, tmp_path):
    command_line = [sys.executable, "-c", WATCH, "norms", write_large(kind, tmp_path), "--json"]
    done = subprocess.run(command_line, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["global_norm"] == 5.0
    assert 10_000 < int(done.stderr.split()[-1]) < 200_000  # KiB; the interpreter and NumPy exceed the lower bound
    for file in tmp_path.iterdir():
        file.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what memory a process has")
def test_compressed_files_in_other_orders_are_not_loaded_as_a_whole(tmp_path):
    paths = []
    for order in ("C", "F"):
        data = np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.complex128, (1 << 12, 1 << 12), order == "F")
        data[0, -1] = {"C": 7, "F": 10}[order]
        data[-1, -1] = {"C": 5, "F": 1}[order]
        paths.append(tmp_path / f"{order}.npz")
        with zipfile.ZipFile(paths[-1], "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.write(tmp_path / "w.npy", "w.npy")
    command_line = [sys.executable, "-c", WATCH, "diff", *paths, "--json"]
    done = subprocess.run(command_line, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["global_norm"] == 5.0
    assert 10_000 < int(done.stderr.split()[-1]) < 200_000  # KiB

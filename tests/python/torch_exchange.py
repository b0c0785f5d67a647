"""Python's torch.save and torch.load(weights_only=True) against Bellows' reader and writer: torch_exchange.py PROGRAM.

PROGRAM reads a file and writes what it holds to another, for each line it is sent. Python must find the same types, strides, ties
and values there; what holds anything but tensors and containers must be refused, and none of its code run.
"""
import argparse
import collections
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import zipfile

import torch

PROGRAM = sys.argv[1]
TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]


class Program:
    """One process for all files: a crash ends it, and so the test."""

    def __init__(self):
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def rewrite(self, source, target, select=""):
        """An empty text, or why the file was refused."""
        self.process.stdin.write(f"{source}\t{target}\t{select}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), f"{PROGRAM} ended with {self.process.wait()}"
        return "" if answer == "ok\n" else answer.strip()


rewrite = Program().rewrite


def bits(tensor):
    storage = tensor.untyped_storage()
    return bytes(storage)


def layouts(dtype):
    torch.manual_seed(0)
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (24 * size,), dtype=torch.uint8)
    base = raw.view(dtype)
    matrix = base.as_strided((4, 6), (6, 1))
    tensors = {
        "contiguous": matrix,
        "transposed": base.as_strided((6, 4), (1, 6)),
        "offset": base.as_strided((2, 3), (6, 1), 7),
        "overlapping": base.as_strided((5, 3), (1, 1), 2),
        "expanded": base.as_strided((3, 4), (0, 1)),
        "scalar": base.as_strided((), (), 5),
        "empty": torch.empty(0, 3, dtype=dtype),
        "alone": raw.clone().view(dtype),
    }
    if dtype.is_floating_point:
        tensors["trained"] = raw.clone().view(dtype).requires_grad_()
    if dtype.is_complex and dtype != torch.complex32:
        tensors["conjugate"] = raw.clone().view(dtype).conj()
    return tensors


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


def values():
    yield "all types", {str(dtype): layouts(dtype) for dtype in TYPES}
    yield "state dict", Model().state_dict()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model(torch.tensor([1, 2, 3])).sum().backward()
    optimizer.step()
    yield "training", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.25}
    yield "parameters", dict(model.named_parameters())
    yield "lone tensor", torch.arange(5.0)
    yield "containers", {
        "none": None, "true": True, "ints": [0, 255, 256, 65535, 65536, -1, 2**31, -2**31, 2**62, -2**63],
        "floats": (0.1, float("inf"), -0.0, 1e-310), "complex": 1 + 2j, "text": "näme \n\t'\"😀", "empty": "",
        "bytes": bytes(range(256)), "set": {1, 2, 3}, "nested": [[], (), {}, ((1,), [2, {"x": (3, 4)}])],
        1: "int key", -7: [torch.ones(2)], (1, "a"): 2, True: 0, 2.5: 1, None: 3, b"b": 4,
        "ordered": collections.OrderedDict([("z", 1), ("a", torch.zeros(3, dtype=torch.int8))]),
        "size": torch.Size([2, 3]), "array": bytearray(b"\xff\x00"),
    }
    shared = torch.arange(10.0)
    yield "ties", {"a": shared, "b": shared[2:5], "c": shared.view(2, 5).t(), "d": [shared]}
    yield "many", {f"layer.{i}.weight": torch.full((3,), float(i)) for i in range(3000)}
    yield "long list", {"numbers": list(range(70000))}
    yield "two types of one storage", {"f": shared, "i": shared.view(torch.int32)}


def expected(value):
    """What a value becomes: torch.Size and bytearray are read as tuple and bytes."""
    if isinstance(value, torch.Size):
        return tuple(value)
    return bytes(value) if isinstance(value, bytearray) else value


def same(a, b, where):
    a = expected(a)
    assert type(a) is type(b) or isinstance(a, torch.Tensor), (where, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad), where
        if a.is_conj():
            assert torch.equal(*(t.resolve_conj().view(torch.uint8) for t in (a, b))), where
        else:
            assert a.storage_offset() == b.storage_offset() and bits(a) == bits(b), where
    elif isinstance(a, dict):
        assert list(a.keys()) == list(b.keys()), (where, a.keys(), b.keys())
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    else:
        assert repr(a) == repr(b), (where, a, b)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def ties(value, counted):
    """Which tensors share memory, as a number of the storage for each that counts."""
    known = {}
    return [known.setdefault(t.untyped_storage().data_ptr(), len(known)) if t.untyped_storage().nbytes() else -1
            for t, counts in zip(tensors_of(value), counted) if counts]


def check_round_trips(folder):
    source, target, again = folder / "python.pt", folder / "bellows.pt", folder / "again.pt"
    for what, value in values():
        for form, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False}),
                              *((f"protocol {n}", {"pickle_protocol": n}) for n in (1, 3, 4, 5))):
            try:
                torch.save(value, source, **options)
            except RuntimeError as error:
                assert "different types" in str(error), error
                continue
            message = rewrite(source, target)
            assert not message, (what, form, message)
            loaded = torch.load(target, weights_only=True)
            same(value, loaded, f"{what}, {form}")
            counted = [not t.is_conj() for t in tensors_of(value)]
            assert ties(value, counted) == ties(loaded, counted), (what, form)
            if what == "state dict":
                Model().load_state_dict(loaded)
        assert not rewrite(target, again), what
        assert target.read_bytes() == again.read_bytes(), f"{what}: the bytes are not determined by the value"
        print(f"{what}: equal")


class Runs:
    """Its pickle calls os.mkdir(path)."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Plain:
    def __init__(self):
        self.value = torch.ones(2)


def archive(path, pickled, storages=()):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
        for key, data in storages:
            file.writestr(f"archive/data/{key}", data)


def hostile(marker):
    """Pickles that run code when Python reads them, by every opcode that can."""
    call = str(marker).encode()
    argument = b"(X" + len(call).to_bytes(4, "little") + call + b"t"
    yield "GLOBAL REDUCE", b"\x80\x02cos\nmkdir\n" + argument + b"R."
    yield "STACK_GLOBAL", b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + argument + b"R."
    yield "INST", b"(X" + len(call).to_bytes(4, "little") + call + b"ios\nmkdir\n."
    yield "OBJ", b"(cos\nmkdir\nX" + len(call).to_bytes(4, "little") + call + b"o."
    yield "NEWOBJ", b"\x80\x02cos\nmkdir\n" + argument + b"\x81."
    yield "BUILD", b"\x80\x02cos\nmkdir\n)R}X\x01\x00\x00\x00xK\x01sb."
    yield "EXT1", b"\x80\x02\x82\x01."
    yield "in a dictionary", b"\x80\x02}X\x01\x00\x00\x00acos\nmkdir\n" + argument + b"Rs."
    yield "as a rebuild function", (b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nmkdir\nctorch\nTensor\n"
                                    + argument + b"NtR.")


def bombs():
    """Small pickles that would become large, or endless."""
    yield "pairs of pairs", b"\x80\x02)" + b"2\x86" * 60 + b"."
    yield "text in pairs of pairs", b"\x80\x02X\x00\x10\x00\x00" + b"a" * 4096 + b"2\x86" * 30 + b"."
    yield "deep lists", b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b"."
    yield "deep tuples", b"\x80\x02)" + b"\x85" * 1_000_000 + b"."
    yield "a list in itself", b"\x80\x02]q\x00h\x00a."
    yield "a dictionary in itself", b"\x80\x02}q\x00K\x01h\x00s."
    yield "millions of Nones", b"\x80\x02(" + b"N" * 8_000_000 + b"l."
    yield "a copied list", b"\x80\x02](" + b"N" * 100_000 + b"eq\x00(" + b"cbuiltins\nset\n(h\x00tR" * 10_000 + b"l."
    for opcode in (b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x8d" + bytes(7) + b"\x80", b"\x8b\xff\xff\xff\x7f",
                   b"\x8b\xff\xff\xff\xff", b"B\xff\xff\xff\xff", b"\x96" + b"\xff" * 8, b"\x95" + b"\xff" * 8):
        yield f"length {opcode!r}", b"\x80\x05" + opcode + b"."
    storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK%ctQ%s%s%st"
    rebuild = b"\x80\x02ctorch._utils\n_rebuild_tensor\n" + storage + b"R."
    most = b"\x8a\x08" + b"\xff" * 7 + b"\x7f"
    minus = b"J\xff\xff\xff\xff"
    for what, elements, *view in (("storage of another size", b"\x03", b"K\x00", b"K\x02\x85", b"K\x01\x85"),
                                  ("offset past the end", b"\x02", b"K\x02", b"K\x01\x85", b"K\x01\x85"),
                                  ("size past the end", b"\x02", b"K\x00", b"K\x03\x85", b"K\x01\x85"),
                                  ("stride past the end", b"\x02", b"K\x00", b"K\x02\x85", b"K\x02\x85"),
                                  ("negative offset", b"\x02", minus, b"K\x01\x85", b"K\x01\x85"),
                                  ("negative size", b"\x02", b"K\x00", minus + b"\x85", b"K\x01\x85"),
                                  ("negative stride", b"\x02", b"K\x01", b"K\x02\x85", minus + b"\x85"),
                                  ("huge size", b"\x02", b"K\x00", most + b"\x85", b"K\x00\x85"),
                                  ("huge stride", b"\x02", b"K\x00", b"K\x02\x85", most + b"\x85"),
                                  ("huge product", b"\x02", b"K\x00", most + most + b"\x86", b"K\x00K\x00\x86"),
                                  ("fewer strides", b"\x02", b"K\x00", b"K\x02\x85", b")")):
        yield what, rebuild % (elements, *view)


def check_refusals(folder):
    source, target, marker = folder / "bad.pt", folder / "out.pt", folder / "made by code"

    def refused(what, *needs, select=""):
        message = rewrite(source, target, select)
        assert str(source) in message, f"{what}: {message}"
        for need in needs:
            assert need in message, f"{what}: {message}"
        assert not marker.exists() and not target.exists(), what
        print(f"{what}: {message.removeprefix(str(source))}")

    for what, pickled in hostile(marker):
        archive(source, pickled)
        refused(what, *([] if what in ("EXT1", "as a rebuild function") else ["os.mkdir"]))
    for what, pickled in bombs():
        archive(source, pickled, [("0", bytes(8))])
        started = time.monotonic()
        refused(what)
        assert time.monotonic() - started < 5, what
    for zipped in (True, False):
        torch.save({"a": torch.ones(1), "x": Runs(marker)}, source, _use_new_zipfile_serialization=zipped)
        refused("code beside tensors", "mkdir")
        torch.save({"a": torch.ones(1), "x": Plain(), "y": argparse.Namespace(b=1)}, source,
                   _use_new_zipfile_serialization=zipped)
        refused("classes", "needs class", "__main__.Plain", "argparse.Namespace", "tensors and containers only")
        torch.save({"model": {"w": torch.ones(1)}, "args": argparse.Namespace(b=1)}, source,
                   _use_new_zipfile_serialization=zipped)
        assert not rewrite(source, target, "model")
        assert torch.equal(torch.load(target)["w"], torch.ones(1))
        target.unlink()
        refused("a part that is not there", "has no part 'modle'", "model", select="modle")
        torch.save(Model(), source, _use_new_zipfile_serialization=zipped)
        refused("whole module", "whole module", "state_dict()")
    torch.save({"s": torch.eye(3).to_sparse()}, source)
    refused("sparse", "_rebuild_sparse_tensor")
    torch.save({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, source)
    refused("quantized", "QInt8Storage")
    torch.save({"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, source)
    refused("nested", "_rebuild_nested_tensor")
    torch.save({"m": torch.empty(2, device="meta")}, source)
    refused("meta", "_rebuild_meta_tensor_no_storage")
    pickled = io.BytesIO()
    torch.save({"a": torch.ones(4)}, pickled)
    with zipfile.ZipFile(pickled) as file, zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as out:
        for name in file.namelist():
            out.writestr(name, file.read(name))
    refused("compressed", "compressed")
    with zipfile.ZipFile(pickled) as file, zipfile.ZipFile(source, "w") as out:
        for name in file.namelist():
            out.writestr(name, b"99\n" if name.endswith("/version") else file.read(name))
    refused("newer", "newer PyTorch", "99", "up to 10")
    with zipfile.ZipFile(pickled) as file, zipfile.ZipFile(source, "w") as out:
        for name in file.namelist():
            out.writestr(name, b"big" if name.endswith("byteorder") else file.read(name))
    refused("big-endian", "big-endian")
    for suffix in ("safetensors", "npy", "script", "gzip", "empty", "text"):
        content = {"safetensors": b"\x02" + bytes(7) + b"{}", "npy": b"\x93NUMPY\x01\x00", "gzip": b"\x1f\x8b\x08",
                   "empty": b"", "text": b"<html>not found</html>\n", "script": None}[suffix]
        if content is None:
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), source)
        else:
            source.write_bytes(content)
        refused(suffix, "expected tensors and containers saved by Python's torch.save")


def check_every_cut(folder):
    """A file cut at every byte is refused, or reads as it was where only unneeded bytes are gone."""
    source, target = folder / "cut.pt", folder / "out.pt"
    for zipped in (True, False):
        whole = io.BytesIO()
        torch.save({"a": torch.ones(2), "b": [1, "x"]}, whole, _use_new_zipfile_serialization=zipped)
        data = whole.getvalue()
        for length in range(len(data)):
            source.write_bytes(data[:length])
            assert str(source) in rewrite(source, target), (zipped, length)
        print(f"cut at every byte, {'zip' if zipped else 'legacy'}: refused")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_round_trips(folder)
        check_refusals(folder)
        check_every_cut(folder)


if __name__ == "__main__":
    main()

"""Python's safetensors package against Bellows' reader and writer: safetensors_exchange.py PROGRAM.

PROGRAM IN OUT rewrites a file. Both must agree on bytes, values and on what is refused.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

import safetensors
import torch
from safetensors.torch import load_file, save_file

PROGRAM = sys.argv[1]
TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]


def rewrite(source, target, *options):
    return subprocess.run([PROGRAM, source, target, *options], capture_output=True, encoding="utf-8")


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def all_types():
    torch.manual_seed(0)
    tensors = {}
    for dtype in TYPES:
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (3 * 5 * size,), dtype=torch.uint8)
        name = str(dtype).removeprefix("torch.")
        tensors[f"{name}.matrix"] = raw.view(dtype).reshape(3, 5)
        if dtype != torch.float4_e2m1fn_x2:  # two values in one element
            tensors[f"{name}.scalar"] = raw.view(dtype)[0].clone()
        tensors[f"{name}.empty"] = torch.empty(0, 4, dtype=dtype)
    tensors['é"\\\n\x01\x7f/😀'] = torch.tensor([float("nan"), -0.0, float("inf")])
    return tensors


def check_round_trip(folder, tensors, metadata):
    source, target = folder / "python.safetensors", folder / "bellows.safetensors"
    save_file(tensors, source, metadata=metadata)
    done = rewrite(source, target)
    assert done.returncode == 0, done.stderr
    assert source.read_bytes() == target.read_bytes(), "the rewritten file differs"
    check_equal(target, tensors)
    with safetensors.safe_open(target, "pt") as file:
        assert file.metadata() == metadata, file.metadata()

    done = rewrite(source, target, "checksums")
    assert done.returncode == 0, done.stderr
    check_equal(target, tensors)
    with safetensors.safe_open(target, "pt") as file:
        checksums = file.metadata().pop("bellows.xxh3")
        assert len(checksums) == 16 * len(tensors), checksums
    check_damage(target, folder)


def check_equal(path, tensors):
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        got = loaded[name]
        assert got.dtype == tensor.dtype and got.shape == tensor.shape, name
        assert torch.equal(bits(got), bits(tensor)), name


def check_damage(path, folder):
    """What Python cannot see: a bit of a tensor that was flipped."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    damaged = folder / "damaged.safetensors"
    damaged.write_bytes(content)
    load_file(damaged)
    done = rewrite(damaged, folder / "out.safetensors")
    assert done.returncode == 1 and "its checksum is" in done.stderr, done.stderr


def refused_files():
    def file(header, data=b"", length=None):
        header = header if isinstance(header, bytes) else header.encode()
        return struct.pack("<Q", len(header) if length is None else length) + header + data

    def tensor(name="a", dtype='"F32"', shape="[1]", offsets="[0,4]"):
        return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'

    one = bytes(4)
    yield "empty file", b""
    yield "no header", file("")
    yield "length 2^63", file("{}", length=1 << 63)
    yield "length over 100 MB", file(b"{}" + b" " * 100_000_000)
    yield "length past the end", file("{}", length=3)
    yield "not an object", file("[]")
    yield "not JSON", file("{" + tensor() + ",", one)
    yield "bytes after the object", file("{" + tensor() + "}x", one)
    yield "bad UTF-8", file(b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', one)
    yield "deep JSON", file('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    yield "a zero byte after the end", file("{" + tensor() + "}\0garbage", one)
    yield "overlap", file("{" + tensor() + "," + tensor("b") + "}", one)
    yield "name twice, the second elsewhere", file("{" + tensor() + "," + tensor(offsets="[4,8]") + "}", bytes(8))
    yield "half a byte", file("{" + tensor(dtype='"F4"', shape="[3]", offsets="[0,1]") + "}", bytes(1))
    yield "packed pairs, odd", file("{" + tensor(dtype='"F4"', shape="[2,3]", offsets="[0,3]") + "}", bytes(3))
    yield "type that torch lacks", file("{" + tensor(dtype='"F6_E2M3"', shape="[4]", offsets="[0,3]") + "}", bytes(3))
    yield "hole", file("{" + tensor(offsets="[4,8]") + "}", bytes(8))
    yield "bytes after the data", file("{" + tensor() + "}", bytes(5))
    yield "data cut short", file("{" + tensor() + "}", bytes(3))
    yield "wrong size", file("{" + tensor(shape="[2]") + "}", one)
    yield "offsets reversed", file("{" + tensor(shape="[0]", offsets="[4,0]") + "}")
    yield "three offsets", file("{" + tensor(offsets="[0,4,4]") + "}", one)
    yield "dimension 2^63", file("{" + tensor(shape="[9223372036854775808]") + "}", one)
    yield "overflowing shape", file("{" + tensor(shape="[4611686018427387904,4]", offsets="[0,0]") + "}")
    yield "negative dimension", file("{" + tensor(shape="[-1]") + "}", one)
    yield "fractional dimension", file("{" + tensor(shape="[1.0]") + "}", one)
    yield "unknown type", file("{" + tensor(dtype='"F99"') + "}", one)
    yield "type not a string", file("{" + tensor(dtype="1") + "}", one)
    yield "missing shape", file('{"a":{"dtype":"F32","data_offsets":[0,4]}}', one)
    yield "field twice", file('{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', one)
    yield "metadata not strings", file('{"__metadata__":{"x":1},' + tensor() + "}", one)
    yield "metadata twice", file('{"__metadata__":{},"__metadata__":{},' + tensor() + "}", one)


def check_refusals(folder):
    messages = {}
    for what, content in refused_files():
        source = folder / "bad.safetensors"
        source.write_bytes(content)
        try:
            load_file(source)
        except Exception:
            pass
        else:
            raise AssertionError(f"Python accepts: {what}")
        done = rewrite(source, folder / "out.safetensors")
        assert done.returncode == 1, f"{what}: ended with {done.returncode}\n{done.stderr}"
        assert str(source) in done.stderr or "'a'" in done.stderr, f"{what}: {done.stderr}"
        message = done.stderr.strip().removeprefix(f"{source}: ")
        print(f"{what}: {message}")
        messages.setdefault(message, []).append(what)
    return messages


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_round_trip(folder, all_types(), {"format": "pt"})
        check_round_trip(folder, {"a": torch.arange(10.0)}, None)
        check_round_trip(folder, {"a": torch.arange(10.0)}, {"näme": "v\n\"\\ü"})
        check_refusals(folder)


main()

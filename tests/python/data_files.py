"""Our readers of .npy, PNG, JPEG and image folders agree with NumPy and torchvision.

Usage: data_files.py PROGRAM (built from data_files.cpp)."""

import itertools
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import torchvision
from torchvision.io import ImageReadMode, decode_image, write_jpeg, write_png

NAMES = {
    "bool": "Bool", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long", "uint8": "Byte",
    "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64", "float16": "Half", "float32": "Float",
    "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}


def arrays():
    generator = numpy.random.default_rng(1)
    for name, order, shape in itertools.product(NAMES, "CF", [(), (0,), (7,), (3, 5), (2, 3, 4), (4, 0, 2)]):
        values = generator.integers(0, 100, shape) - (0 if name.startswith(("u", "b")) else 50)
        array = numpy.asarray(values % 2 if name == "bool" else values).astype(name)
        for endian in "<>":
            yield numpy.asarray(array, dtype=array.dtype.newbyteorder(endian), order=order)


def pictures():
    generator = torch.Generator().manual_seed(1)
    for height, width in [(1, 1), (16, 16), (37, 61), (200, 133)]:
        coarse = torch.rand(3, 4, 5, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse[None], (height, width), mode="bilinear")[0]
        yield (smooth * 255).to(torch.uint8)


def write_files(folder):
    """Yields (kind, path, expected type name, expected array)."""
    for number, array in enumerate(arrays()):
        path = folder / f"{number}.npy"
        numpy.save(path, array)
        native = array.astype(array.dtype.newbyteorder("="), order="C")
        yield "npy", path, NAMES[native.dtype.name], native
    for number, picture in enumerate(pictures()):
        for name, quality in [("png", None), ("jpg", 90), ("low.jpg", 20)]:
            path = folder / f"{number}.{name}"
            write_jpeg(picture, str(path), quality) if quality else write_png(picture, str(path))
            yield "image", path, "Byte", decode_image(str(path), ImageReadMode.RGB).numpy()
            if name != "png":  # torchvision weighs the colours of a PNG otherwise than libpng
                yield "grey", path, "Byte", decode_image(str(path), ImageReadMode.GRAY).numpy()
        grey = folder / f"{number}.grey.png"
        write_png(picture[:1], str(grey))
        yield "grey", grey, "Byte", picture[:1].numpy()


def write_folder(root):
    picture = torch.zeros(3, 2, 2, dtype=torch.uint8)
    for name in ["b/2.png", "b/10.png", "b/ä.png", "b/Z.PNG", "a/x/1.png", "a/x.y/1.png", "a/x0.png", "a/x/y/0.png", "C/a.png"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_png(picture, str(root / name))
    (root / "b/readme.txt").write_text("no image")
    return torchvision.datasets.ImageFolder(root)


def main(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tree").mkdir()
        expected_folder = write_folder(folder / "tree")
        compared = 0
        files = list(write_files(folder))
        # A file that is read in two ways has one output: a run for each.
        for kinds in ({"npy", "image"}, {"grey"}):
            part = [file for file in files if file[0] in kinds]
            lines = run(program, "".join(f"{kind} {path}\n" for kind, path, _, _ in part))
            for (kind, path, type_name, expected), line in zip(part, lines, strict=True):
                words = [type_name, *map(str, expected.shape)]
                if line.split() != words:
                    sys.exit(f"{kind} {path}: got {line}, expected {' '.join(words)}")
                if pathlib.Path(f"{path}.out").read_bytes() != expected.tobytes():
                    sys.exit(f"{kind} {path}: the values differ")
                compared += 1
        lines = run(program, f"folder {folder / 'tree'}\n")
        expected_lines = [str(len(expected_folder))] + [f"{label} {path}" for path, label in expected_folder.samples]
        if lines != expected_lines:
            sys.exit(f"folder: got {lines}, expected {expected_lines}")
    print(f"{compared} files and a folder equal NumPy's and torchvision's")


def run(program, text):
    return subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()


main(sys.argv[1])

"""Our image transforms give what torchvision's give. Usage: image_transforms.py PROGRAM (of image_transforms.cpp)."""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from torchvision.transforms.functional import convert_image_dtype
from torchvision.transforms.v2 import functional as F


def resize(image, size):
    if size[1] == 1 and image.dtype == torch.uint8:  # PyTorch's kernel for bytes gives wrong values or an internal error
        return F.resize(image.float(), list(size), antialias=True).round().to(torch.uint8)
    return F.resize(image, list(size), antialias=True)


# name, arguments, torchvision's, how far bytes and floats may differ
CASES = [
    # As ToTensor; v2 multiplies by 1 / 255 instead, which rounds otherwise.
    ("to_float", (), lambda x: convert_image_dtype(x, torch.float32), 0, 0),
    ("normalize", (0.5, 0.4, 0.3, 0.2, 0.3, 0.4), lambda x: F.normalize(x, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), None, 0),
    *[("resize", size, lambda x, size=size: resize(x, size), 1, 1e-6)
      for size in [(224, 224), (17, 31), (7, 200), (1, 1), (5, 1), (1, 5), (45, 61)]],
    *[("resize_shorter", (size,), lambda x, size=size: F.resize(x, [size], antialias=True), 1, 1e-6) for size in (16, 45, 99)],
    *[("crop", box, lambda x, box=box: F.crop(x, *box), 0, 0)
      for box in [(0, 0, 45, 61), (3, 5, 20, 30), (-4, -2, 20, 30), (40, 50, 20, 30), (-10, -10, 80, 90)]],
    *[("center_crop", size, lambda x, size=size: F.center_crop(x, list(size)), 0, 0)
      for size in [(20, 30), (21, 31), (44, 60), (45, 61), (50, 30), (51, 70), (20, 80)]],
    ("flip", (), F.horizontal_flip, 0, 0),
    ("erase", (3, 5, 20, 30, 0.25), lambda x: F.erase(x, 3, 5, 20, 30, torch.tensor(0.25)), 0, 0),
    *[("brightness", (f,), lambda x, f=f: F.adjust_brightness(x, f), 0, 0) for f in (0, 0.5, 1, 1.7)],
    *[("contrast", (f,), lambda x, f=f: F.adjust_contrast(x, f), 0, 1e-7) for f in (0, 0.5, 1, 1.7)],
    *[("saturation", (f,), lambda x, f=f: F.adjust_saturation(x, f), 0, 1e-7) for f in (0, 0.5, 1, 1.7)],
    *[("hue", (f,), lambda x, f=f: F.adjust_hue(x, f), 1, 2e-6) for f in (-0.5, -0.13, 0, 0.3, 0.5)],
]


def images():
    """Smooth and noisy, one and several."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(3, 45, 61, generator=generator)
    coarse = torch.rand(2, 3, 6, 7, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (45, 61), mode="bicubic").clamp(0, 1)
    grey = noise[:1].expand(3, 45, 61).contiguous()
    for image in (noise, smooth, grey):
        yield image
        yield (image * 255).to(torch.uint8)
    yield (noise * 255).to(torch.uint8).contiguous(memory_format=torch.contiguous_format)[:, ::2, 1::2].contiguous()


def main(program):
    compared = 0
    worst = {}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for number, image in enumerate(images()):
            path = pathlib.Path(folder) / f"{number}.npy"
            numpy.save(path, image.numpy())
            for name, arguments, reference, byte_bound, float_bound in CASES:
                is_float = image.is_floating_point()
                bound = float_bound if is_float else byte_bound
                if bound is None or (name == "crop" and image.shape[-1] < 61):
                    continue
                if name == "erase" and (not is_float or image.shape[-1] < 61):
                    continue
                expected = reference(image).contiguous()
                process.stdin.write(" ".join(map(str, (name, path, *arguments))) + "\n")
                process.stdin.flush()
                line = process.stdout.readline().split()
                if list(map(int, line[1:])) != list(expected.shape):
                    sys.exit(f"{name}{arguments} of {image.dtype} {tuple(image.shape)}: got {line}, expected {tuple(expected.shape)}")
                raw = pathlib.Path(f"{path}.out").read_bytes()
                got = torch.frombuffer(bytearray(raw), dtype=expected.dtype).view(expected.shape)
                difference = (got.double() - expected.double()).abs().max().item()
                worst[name] = max(worst.get(name, 0), difference)
                if not difference <= bound:
                    sys.exit(f"{name}{arguments} of {image.dtype} {tuple(image.shape)}: differs by {difference}, expected at most {bound}")
                compared += 1
        process.stdin.close()
    print(f"{compared} images equal torchvision's; largest differences:", {k: v for k, v in worst.items() if v})


main(sys.argv[1])

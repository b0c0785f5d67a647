"""The built-in models against PyTorch: model_init.py PROGRAM.

PROGRAM (tests/nn/dump_model.cpp) builds a model under a seed. The same layers, built here under the same
seed, must have the same names and, bit by bit, the same values; outputs must agree to rounding.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

PROGRAM = sys.argv[1]


class Mlp(nn.Module):
    def __init__(self, in_features=784, hidden=(128,), classes=10):
        super().__init__()
        widths = [in_features, *hidden, classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class ConvNet(nn.Module):
    def __init__(self, in_channels=1, channels=(32, 64, 128), classes=10):
        super().__init__()
        widths = [in_channels, *channels]
        self.features = nn.Sequential()
        for a, b in zip(widths, widths[1:]):
            self.features.extend([nn.Conv2d(a, b, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(b), nn.ReLU()])
        self.classifier = nn.Linear(widths[-1] * 9, classes)

    def forward(self, x):
        x = self.features(x)
        return self.classifier(nn.functional.adaptive_avg_pool2d(x, 3).flatten(1))


def rows(x):
    """Images row by row; sequences as they are."""
    return x.transpose(1, 2).flatten(2) if x.dim() == 4 else x


class Lstm(nn.Module):
    def __init__(self, in_features=28, hidden=128, layers=1, dropout=0, bidirectional=False, classes=10):
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden, layers, batch_first=True, dropout=dropout, bidirectional=bidirectional)
        self.classifier = nn.Linear(2 * hidden if bidirectional else hidden, classes)

    def forward(self, x):
        return self.classifier(self.lstm(rows(x))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self, in_features=28, width=64, heads=4, layers=2, feedforward=128, dropout=0.1, norm_first=False,
                 activation="relu", max_tokens=64, classes=10):
        super().__init__()
        self.embed = nn.Linear(in_features, width)
        self.position = nn.Parameter(nn.init.normal_(torch.empty(1, max_tokens, width), std=0.02))
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, activation, batch_first=True,
                                           norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(rows(x))
        return self.classifier(self.encoder(x + self.position[:, :x.size(1)]).mean(1))


def text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def check(folder, name, seed, make, shape, **options):
    torch.manual_seed(seed)
    model = make()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    last = options.get("channels_last", name == "convnet")
    if last:
        model = model.to(memory_format=torch.channels_last)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    given = x.contiguous(memory_format=torch.channels_last) if last else x
    with torch.no_grad():
        outputs = {"train": model(given), "eval": model.eval()(given)}

    source, target = folder / "in.safetensors", folder / "out.safetensors"
    save_file({"input": x}, source)
    command = [PROGRAM, name, str(seed), source, target] + [f"{k}={text(v)}" for k, v in options.items()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    got = load_file(target)

    names = {k.removeprefix("state.") for k in got if k.startswith("state.")}
    assert names == state.keys(), f"{name}: names differ: {names ^ state.keys()}"
    for key, value in state.items():
        mine = got["state." + key]
        assert mine.dtype == value.dtype and torch.equal(mine, value), f"{name} {options}: {key} differs"
    for mode, value in outputs.items():
        off = (got[mode] - value).abs().max().item()
        print(f"{name} {options} seed {seed}: {mode} output differs by {off:.2g}")
        torch.testing.assert_close(got[mode], value)


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for seed in (0, 1234567):
            check(folder, "mlp", seed, Mlp, (8, 1, 28, 28))
            check(folder, "convnet", seed, ConvNet, (8, 1, 28, 28))
        check(folder, "mlp", 3, lambda: Mlp(12, (7, 5), 3), (4, 3, 2, 2), in_features=12, hidden=(7, 5), classes=3)
        check(folder, "convnet", 4, lambda: ConvNet(3, (8, 16), 100), (4, 3, 32, 32), in_channels=3,
              channels=(8, 16), classes=100, channels_last=False)
        resnet18 = torchvision.models.resnet18
        check(folder, "resnet18", 0, resnet18, (2, 3, 64, 64))
        # Dropout draws in training: the same under the same seed.
        for name, model, shape, options in (
                ("lstm", Lstm, (8, 1, 28, 28), {}),
                ("lstm", Lstm, (4, 9, 5), dict(in_features=5, hidden=7, classes=3)),
                ("lstm", Lstm, (4, 3, 6, 4), dict(in_features=12, hidden=16, layers=2, bidirectional=True)),
                ("lstm", Lstm, (4, 9, 28), dict(layers=2, dropout=0.5)),
                ("transformer", Transformer, (8, 1, 28, 28), dict(dropout=0)),
                ("transformer", Transformer, (8, 1, 28, 28), {}),
                ("transformer", Transformer, (4, 12, 5), dict(in_features=5, width=24, heads=3, layers=3, feedforward=40,
                                                              dropout=0, max_tokens=12, classes=3)),
                ("transformer", Transformer, (4, 3, 6, 4), dict(in_features=12, norm_first=True, dropout=0)),
                ("transformer", Transformer, (4, 9, 28), dict(norm_first=True, activation="gelu", dropout=0.5)),
                ("transformer", Transformer, (4, 9, 28), dict(activation="gelu", layers=1, dropout=0))):
            for seed in (0, 1234567):
                check(folder, name, seed, lambda: model(**options), shape, **options)
        check(folder, "resnet18", 5, lambda: resnet18(num_classes=10), (2, 3, 64, 64), classes=10, channels_last=True)


main()

"""Bellows' convnet in Python, for traces and benchmarks."""

import torch


class ConvNet(torch.nn.Module):
    """Bellows' convnet in Python (bellows/nn/convnet.h)."""

    def __init__(self, channels=(32, 64, 128)):
        super().__init__()
        layers, width = [], 1
        for c in channels:
            layers += [torch.nn.Conv2d(width, c, 3, padding=1, bias=False), torch.nn.MaxPool2d(2), torch.nn.BatchNorm2d(c),
                       torch.nn.ReLU()]
            width = c
        self.features = torch.nn.Sequential(*layers)
        self.classifier = torch.nn.Linear(width * 9, 10)

    def forward(self, x):
        x = self.features(x.contiguous(memory_format=torch.channels_last))
        return self.classifier(torch.flatten(x, 1))

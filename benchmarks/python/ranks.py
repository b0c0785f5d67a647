"""B2 and B13 in Python, under torchrun. Arguments: start, convnet or resnet18; variant: default or bucket_view."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

DIGEST_STEPS, ROUNDS, STEPS = 3, 5, 6

what, variant = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()


def show(value, digest):
    if rank == 0:
        print(f'{{"value": {value}, "digest": {digest!r}}}', flush=True)


class ConvNet(torch.nn.Module):
    """Bellows' convnet (bellows/nn/convnet.h)."""

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


def train():
    torch.manual_seed(0)
    if what == "resnet18":
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
    else:
        model = ConvNet().to(memory_format=torch.channels_last)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=variant == "bucket_view")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(16, 3, 32, 32) if what == "resnet18" else torch.randn(16, 1, 28, 28)
    targets = torch.randint(10, (16,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(DIGEST_STEPS):
        loss = step()
    digest = loss.detach().clone()
    dist.all_reduce(digest)
    step(), step()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        times.append((time.perf_counter() - begin) / STEPS * 1e6)
    show(statistics.median(times), digest.item())


if what == "start":
    total = torch.full((1,), rank + 1.0)
    dist.all_reduce(total)
    show(0, total.item())
else:
    train()
dist.barrier()
dist.destroy_process_group()

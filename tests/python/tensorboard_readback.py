"""Reads with the tensorboard package what bellows::train::SummaryWriter wrote.

Usage: tensorboard_readback.py WRITER_PROGRAM
"""

import subprocess
import sys
import tempfile

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, STORE_EVERYTHING_SIZE_GUIDANCE


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        events = EventAccumulator(folder, size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
        events.Reload()  # checks every record's checksum
    scalars = events.Scalars("train/loss")
    assert [s.step for s in scalars] == list(range(1, 101)), scalars
    assert [s.value for s in scalars] == [float(np.float32(1 / step)) for step in range(1, 101)]
    assert abs(scalars[0].wall_time - scalars[-1].wall_time) < 60
    # After a resume at step 50 nothing past it remained, and the rest followed.
    assert [s.step for s in events.Scalars("resumed")] == [1, 2, 3, 4]

    value = events.Histograms("weights")[0].histogram_value
    numbers = np.arange(-50, 51) / 10
    assert value.num == len(numbers) and value.min == -5.0 and value.max == 5.0, value
    assert abs(value.sum - numbers.sum()) < 1e-9 and abs(value.sum_squares - (numbers**2).sum()) < 1e-9
    assert sum(value.bucket) == len(numbers)
    lower = -np.inf
    for limit, count in zip(value.bucket_limit, value.bucket):
        assert count == ((numbers >= lower) & (numbers < limit)).sum(), (lower, limit, count)
        lower = limit

    (text,) = events.Tensors("note/text_summary") if "note/text_summary" in events.Tags()["tensors"] else events.Tensors("note")
    assert text.step == 7 and text.tensor_proto.string_val[0].decode() == "**bold** ü", text
    print("scalars, histogram and text as written")


main()

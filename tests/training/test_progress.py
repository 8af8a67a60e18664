"""The progress bar of runs whose epochs differ in length."""

import io

import pytest
from tqdm import tqdm

from divconq.recorder import Recorder
from divconq.train import train
from divconq.training.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch):
    """Without one there is no bar."""
    monkeypatch.setattr(
        "divconq.training.progress.tqdm", lambda **options: tqdm(**{**options, "file": Terminal()})
    )


def shown(bar):
    return bar.n, bar.total


def test_epochs_to_come_count_as_long_as_the_current_one():
    progress = Progress(epochs=3, batch=10)
    expected = [(0, 3 * 4), (4, 4 + 2 * 6), (10, 10 + 5)]
    for epoch, steps in enumerate((4, 6, 5)):
        progress.epoch(epoch, 1, steps)
        assert shown(progress.bar) == tuple(10 * count for count in expected[epoch])
        for _ in range(steps):
            progress.step(None)
    assert shown(progress.bar) == (150, 150), "full at the end"


def test_a_resumed_run_begins_where_its_epoch_is():
    progress = Progress(epochs=4, batch=10)
    progress.epoch(2, 2, steps=6, done=3)
    assert shown(progress.bar) == (150, 240)
    assert progress.bar.initial == 150, "images of before the resume do not count for the speed"
    for _ in range(3):
        progress.step(None)
    progress.epoch(3, 2, steps=8)
    assert shown(progress.bar) == (180, 180 + 80)


@pytest.mark.parametrize("epoch_length", ["images", "largest", "smallest"])
def test_the_bar_of_a_run_is_full_at_its_end(tiny, tmp_path, monkeypatch, epoch_length):
    bars, totals, steps = [], [], []
    begin = Recorder.begin_steps

    def noted(recorder, plan):
        begin(recorder, plan)
        bars.append(recorder.progress.bar)
        totals.append(recorder.progress.bar.total)
        steps.append(len(plan))

    monkeypatch.setattr(Recorder, "begin_steps", noted)
    config = tiny.replace(epochs=3, batch=10, epoch_length=epoch_length)
    records = train(config, tmp_path / "run")
    done = [sum(steps[:epoch]) for epoch in range(3)]
    assert totals == [10 * (done[epoch] + (3 - epoch) * steps[epoch]) for epoch in range(3)]
    assert bars[0].n == bars[0].total == 10 * sum(steps)
    for record, count in zip(records, steps, strict=True):
        assert record["images_per_s"] == pytest.approx(10 * count / record["seconds"]["train"])

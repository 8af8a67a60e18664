"""A loss is one class and one line of ``LOSSES``, also from a file that ``--import`` names."""

import pytest
import torch

from divconq.cli import main
from divconq.losses import LOSSES, make_loss
from divconq.runs.folder import Run

MINE = """
import torch
from divconq.losses import LOSSES

class Mine(torch.nn.Module):
    def __init__(self, num_classes, dim, scale=2.0, soft=False, kind="plain"):
        super().__init__()
        self.centres = torch.nn.Parameter(torch.ones(num_classes, dim))
        self.scale, self.soft, self.kind = scale, soft, kind

    def forward(self, z, labels):
        return self.scale * (1 - (z * self.centres[labels]).sum(1)).square().mean()

LOSSES["mine"] = Mine
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file, and a table that forgets its line afterwards."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    monkeypatch.setitem(LOSSES, "mine", None)
    return file


def test_a_line_added_at_run_time_makes_a_loss_by_name(mine):
    exec(mine.read_text(), {})
    loss = make_loss("mine", {"scale": 3, "soft": True, "kind": "round"}, num_classes=5, dim=8)
    assert loss.centres.shape == (5, 8)
    assert (loss.scale, loss.soft, loss.kind) == (3, True, "round")
    with pytest.raises(ValueError, match="scale of the loss mine must be a number, got 'wide'"):
        make_loss("mine", {"scale": "wide"}, num_classes=5, dim=8)
    with pytest.raises(ValueError, match="soft of the loss mine must be true or false, got 1"):
        make_loss("mine", {"soft": 1}, num_classes=5, dim=8)
    with pytest.raises(ValueError, match=r"mine has no argument 'scal', .*; did you mean 'scale'"):
        make_loss("mine", {"scal": 1}, num_classes=5, dim=8)


def test_the_command_line_trains_with_a_loss_of_your_own(tiny, mine, tmp_path):
    from test_resume import flags

    words = [*flags(tiny), "--epochs", "1", "--loss", "mine", "--loss.scale", "3", "--import", str(mine)]
    main(["train", "--out", str(tmp_path / "run"), *words])
    run = Run.open(tmp_path / "run")
    assert run.config.loss.args == {"scale": 3}
    assert run.load()["divide_and_conquer"]["objective.loss.centres"].shape[1] == tiny.model.dim
    assert torch.isfinite(torch.tensor(run.metrics()[0]["loss"]))

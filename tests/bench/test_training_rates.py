import pytest
import torch

from divconq.bench.steps import Training, bare_step, embedding_rates, training_rates
from divconq.train import train
from divconq.training.setup import prepare


def test_an_epoch_is_the_epoch_of_train(tiny, tmp_path):
    config = tiny.replace(k_max=1, epochs=3, eval_every=3)
    records = train(config, tmp_path / "run")
    ours = Training(prepare(config))
    for record in records:
        assert ours.run() == 48
        assert ours.loss == pytest.approx(record["loss"], abs=1e-6)


def test_batches_come_from_all_clusters(tiny):
    ours = Training(prepare(tiny.replace(k_max=4)))
    assert ours.job.dc.masks.k == ours.job.dc.partition.k == 4
    clusters = set()
    for _ in range(2):
        clusters |= set(ours.plan.clusters.tolist())
        ours.run()
    assert clusters == {0, 1, 2, 3}


def test_the_bare_step_steps_and_learns_nothing(tiny):
    job = prepare(tiny)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    (loss,) = bare_step(job)(torch.rand(3, 3, 16, 16))
    assert loss > 0
    assert all(parameter.grad.any() for parameter in job.model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


def test_every_round_takes_the_steps_of_its_epochs(tiny, monkeypatch):
    counted = []

    def a_second(work, device):
        counted.append(work())
        return 1.0, counted[-1]

    monkeypatch.setattr("divconq.bench.steps.timed", a_second)
    job = prepare(tiny)
    rates, way = training_rates(job, epochs=2, rounds=3)
    assert rates == {"bare": [96.0] * 3, "ours": [96.0] * 3}
    assert (way, counted) == ("plain", [96] * 6)
    monkeypatch.setattr("divconq.bench.steps.timed", lambda work, device: (2.0, work()))
    assert embedding_rates(job, rounds=2) == [24.0, 24.0]

"""Shares, gathering, random numbers, errors and flags between processes; alone all of it does nothing."""

import copy
import random

import jaxtyping
import pytest
import torch
from torch import nn

from distributed.ranks import needs_gloo, raised_by, run
from divconq.distributed import (
    anywhere,
    first_only,
    gather,
    on_every,
    on_first,
    process_group,
    rank,
    shard,
    size,
    synchronise,
)
from divconq.distributed.collectives import own_randomness, share_batchnorm

pytestmark = needs_gloo


def fail_on(which, kind=ValueError):
    if rank() == which:
        raise kind(f"rank {which} cannot")
    return rank()


class UnknownError(Exception):
    pass


def parts():
    torch.manual_seed(rank())
    linear = nn.Linear(3, 3).to(memory_format=torch.channels_last)
    started_as = copy.deepcopy(linear.state_dict())
    synchronise(linear)
    torch.manual_seed(7)
    random.seed(7)
    own = []
    for _ in range(2):
        with own_randomness():
            own.append(torch.rand(3))
    written: list[int] = []
    first_only(lambda: written.append(rank()))()
    return {
        "rank": (rank(), size()),
        "shards": [torch.arange(n)[shard(n)] for n in range(12)],
        "whole": [gather(torch.arange(2 * n).view(n, 2)[shard(n)], n) for n in range(12)],
        "wrong rows": raised_by(lambda: gather(torch.zeros(5), 8)),
        "started as": started_as["weight"],
        "synchronised": linear.weight.detach(),
        "own": torch.stack(own),
        "shared": torch.rand(3),
        "written by": written,
        "first": on_first(dict, k=torch.tensor([rank(), 5])),
        "first fails": raised_by(lambda: on_first(lambda: fail_on(0))),
        "first fails with an unknown error": raised_by(lambda: on_first(lambda: fail_on(0, UnknownError))),
        "every": on_every(lambda: fail_on(99)),
        "every fails": raised_by(lambda: on_every(lambda: fail_on(1))),
        "anywhere": (anywhere(rank() == 1), anywhere(False)),
        "batchnorm": raised_by(lambda: share_batchnorm(nn.BatchNorm2d(3), torch.device("cpu"))),
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return run(4, parts, tmp_path_factory.mktemp("parts"))


def test_every_rank_knows_its_place(told):
    assert [of["rank"] for of in told] == [(r, 4) for r in range(4)]


def test_shares_differ_by_one_and_come_back_in_order(told):
    for n in range(12):
        shares = [of["shards"][n] for of in told]
        assert torch.equal(torch.cat(shares), torch.arange(n))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(torch.equal(of["whole"][n], torch.arange(2 * n).view(n, 2)) for of in told)


def test_a_share_of_the_wrong_length_is_refused(told):
    assert told[2]["wrong rows"] == (
        "ValueError: rank 2 of 4 must give 2 of 8 rows, got 5; give the rows that shard(n) names"
    )


def test_all_get_the_weights_of_the_first(told):
    assert not torch.equal(told[0]["started as"], told[1]["started as"])
    assert all(torch.equal(of["synchronised"], told[0]["started as"]) for of in told)


def test_random_numbers_are_own_inside_and_shared_outside(told):
    own = torch.cat([of["own"] for of in told])
    assert len(own.unique(dim=0)) == 8  # 4 ranks, 2 steps
    torch.manual_seed(7)
    assert all(torch.equal(of["shared"], told[0]["shared"]) for of in told)
    assert torch.equal(told[0]["shared"], torch.rand(3))


def test_the_first_does_it_for_all(told):
    assert all(torch.equal(of["first"]["k"], torch.tensor([0, 5])) for of in told)


def test_a_function_for_the_first_only_is_skipped_by_the_others(told):
    assert [of["written by"] for of in told] == [[0], [], [], []]


def test_errors_of_one_are_errors_of_all(told):
    assert {of["first fails"] for of in told} == {"ValueError: rank 0 cannot"}
    assert [of["first fails with an unknown error"] for of in told] == (
        ["UnknownError: rank 0 cannot"] + 3 * ["RuntimeError: UnknownError: rank 0 cannot"]
    )
    assert [of["every"] for of in told] == [0, 1, 2, 3]
    assert {of["every fails"] for of in told} == {"ValueError: rank 1 cannot"}


def test_a_flag_of_one_is_seen_by_all(told):
    assert {of["anywhere"] for of in told} == {(True, False)}


def test_live_batchnorm_needs_gpus(told):
    assert all("--freeze-batchnorm" in of["batchnorm"] for of in told)


# --- alone ---


def test_alone_nothing_happens():
    x = torch.rand(5, 2)
    torch.manual_seed(0)
    with process_group(), own_randomness():
        assert (rank(), size()) == (0, 1)
        assert gather(x, 7) is x
        inside = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(inside, torch.rand(3))
    norm = nn.BatchNorm2d(3)
    assert share_batchnorm(norm, torch.device("cpu")) is norm
    assert raised_by(lambda: on_first(lambda: fail_on(0, UnknownError))) == "UnknownError: rank 0 cannot"


def test_alone_a_compiled_function_does_not_notice(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # what checks types cannot be compiled
    whole = torch.compile(lambda x: gather(x * 2, len(x)), backend="eager", fullgraph=True)
    assert torch.equal(whole(torch.ones(3)), torch.full((3,), 2.0))

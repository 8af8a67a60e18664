import errno
import hashlib
import os
import pickle
import resource
import signal
import threading
import time

import pytest
import torch

from divconq.runs import checkpoints
from divconq.runs.checkpoints import Checkpoints, load, read, resume, save


def state(epoch):
    return {"epoch": epoch, "model": {"w": torch.full((300,), float(epoch))}, "optimizer": {}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def middle_of_the_weights(path):
    content = path.read_bytes()
    return content.index(torch.ones(8).numpy().tobytes())


def test_checkpoints_are_read_back_and_the_last_two_are_kept(tmp_path):
    save(tmp_path, "best", state(2))
    for epoch in (1, 2, 3):
        save(tmp_path, "last", state(epoch))
    assert names(tmp_path) == ["best.pt", "last.pt", "previous.pt"]
    assert load(tmp_path)["epoch"] == load(tmp_path, "last")["epoch"] == 3
    assert read(tmp_path / "previous.pt")["epoch"] == 2
    assert torch.equal(load(tmp_path, "best")["model"]["w"], state(2)["model"]["w"])


def test_every_byte_is_checked(tmp_path):
    save(tmp_path, "last", {"w": torch.arange(3.0)})
    path = tmp_path / "last.pt"
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place)
        with pytest.raises(ValueError, match="its checksum does not match"):
            read(path)
        path.write_bytes(whole)
    assert torch.equal(read(path)["w"], torch.arange(3.0))


def test_torch_alone_does_not_notice_the_damage(tmp_path):
    save(tmp_path, "last", {"w": torch.ones(100)})
    flip(tmp_path / "last.pt", middle_of_the_weights(tmp_path / "last.pt"))
    torch.load(tmp_path / "last.pt", weights_only=True)
    with pytest.raises(
        ValueError, match=r"last.pt is damaged or not a checkpoint \(its checksum does not match\)"
    ):
        load(tmp_path)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a bit": lambda path: flip(path, middle_of_the_weights(path)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_checkpoint_is_replaced_by_the_previous_one(tmp_path, damage):
    for epoch in (0, 1):
        save(tmp_path, "last", {**state(epoch), "w": torch.ones(100)})
    DAMAGES[damage](tmp_path / "last.pt")
    before = names(tmp_path)
    with pytest.warns(UserWarning, match=r"last.pt.*; using the previous one, previous.pt") as said:
        assert load(tmp_path)["epoch"] == 0
    assert len(said) == 1
    assert names(tmp_path) == before, "reading changes nothing"
    with pytest.warns(UserWarning, match="using the previous one"):
        assert resume(tmp_path)["epoch"] == 0
    assert names(tmp_path) == ["last.pt"], "it replaces the damaged one"
    save(tmp_path, "last", state(2))
    assert (read(tmp_path / "last.pt")["epoch"], read(tmp_path / "previous.pt")["epoch"]) == (2, 0)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "gone"])
def test_damaged_checkpoints_without_a_good_one_are_a_clear_error(tmp_path, damage):
    save(tmp_path, "last", {"w": torch.ones(100)})
    DAMAGES[damage](tmp_path / "last.pt")
    with pytest.raises(
        ValueError, match=r"last.pt is damaged or not a checkpoint \(.*copy it again from its source"
    ):
        resume(tmp_path)
    for _ in range(2):
        save(tmp_path, "last", {"w": torch.ones(100)})
    for name in ("last.pt", "previous.pt"):
        DAMAGES[damage](tmp_path / name)
    message = r"last.pt is damaged .*, and the previous one cannot be used either: .*previous.pt is damaged"
    with pytest.raises(ValueError, match=message):
        resume(tmp_path)


def test_the_best_checkpoint_is_checked_too(tmp_path):
    with pytest.raises(ValueError, match=r"holds no best.pt"):
        load(tmp_path, "best")
    save(tmp_path, "best", {"w": torch.ones(100)})
    DAMAGES["a bit"](tmp_path / "best.pt")
    with pytest.raises(ValueError, match=r"best.pt is damaged"):
        load(tmp_path, "best")


def sign(path):
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())


class Hostile:
    def __reduce__(self):
        return (os.mkdir, ("hostile-was-here",))


def test_a_hostile_checkpoint_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for write in (torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))):
        write({"format": checkpoints.FORMAT, "model": Hostile()}, tmp_path / "last.pt")
        sign(tmp_path / "last.pt")
        with pytest.raises(ValueError, match="damaged or not a checkpoint"):
            load(tmp_path)
    assert names(tmp_path) == ["last.pt"]


def test_a_foreign_checkpoint_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match="damaged or not a checkpoint"):
        load(tmp_path)
    sign(tmp_path / "last.pt")
    with pytest.raises(ValueError, match="is not a checkpoint of this version"):
        load(tmp_path)


class Killed(BaseException):
    """Stands for SIGKILL: the test then looks only at the files on disk."""


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("repeated", [True, False])
def test_a_crash_at_any_file_operation_leaves_a_good_checkpoint(tmp_path, monkeypatch, links, repeated):
    """The run stops after each file operation in turn and resumes from the files."""
    real = {name: getattr(os, name) for name in ("replace", "link", "unlink", "fsync", "rename")}
    left = [0]

    def counted(name):
        def operation(*args, **kwargs):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            if name == "link" and not links:
                raise OSError(errno.EPERM, "no links here")
            return real[name](*args, **kwargs)

        return operation

    for name in real:
        monkeypatch.setattr(os, name, counted(name))
    operations = {name: getattr(os, name) for name in ("replace", "unlink")}
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: operations["replace"](self, target))
    monkeypatch.setattr(
        "pathlib.Path.unlink", lambda self, missing_ok=False: self.exists() and operations["unlink"](self)
    )
    reached = 0
    for number in range(30):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        left[0] = 1000
        for epoch in (1, 2):
            save(folder, "last", state(epoch))
        done, crashes = False, 2 if repeated else 1
        for _ in range(crashes):
            left[0] = number
            try:
                save(folder, "last", state(3))
                done = True
            except Killed:
                reached += 1
        left[0] = 1000
        if not (folder / "last.pt").exists():
            assert not links
            with pytest.warns(UserWarning, match="using the previous one"):
                found = load(folder)
        else:
            found = load(folder)
        assert found["epoch"] == (3 if done else found["epoch"])
        assert found["epoch"] in (2, 3)
        assert torch.equal(found["model"]["w"], state(found["epoch"])["model"]["w"])
        if (folder / "previous.pt").exists():
            assert read(folder / "previous.pt")["epoch"] in (1, 2, 3)
    assert reached > 5


def test_an_existing_link_leaves_no_temporary_file(tmp_path):
    save(tmp_path, "last", state(1))
    os.link(tmp_path / "last.pt", tmp_path / "previous.pt")  # killed between the two renames
    save(tmp_path, "last", state(2))
    assert names(tmp_path) == ["last.pt", "previous.pt"]
    assert (read(tmp_path / "last.pt")["epoch"], read(tmp_path / "previous.pt")["epoch"]) == (2, 1)


@pytest.mark.parametrize("room", [0, 100, 1000, 50_000, 400_000])
def test_a_full_disk_leaves_the_old_checkpoints_and_no_temporary_file(tmp_path, room):
    for epoch in (1, 2):
        save(tmp_path, "last", state(epoch))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        with pytest.raises(OSError, match="File too large") as caught:
            save(tmp_path, "last", {"w": torch.zeros(100_000), "v": torch.zeros(10)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == ["last.pt", "previous.pt"]
    assert (load(tmp_path)["epoch"], read(tmp_path / "previous.pt")["epoch"]) == (2, 1)


def test_checkpoints_are_written_every_few_minutes_and_fit_together(tmp_path):
    kept = Checkpoints(tmp_path, minutes=10)
    at = state(1)
    assert not kept.step()
    kept.offer(at, best=True, now=False)
    kept.finish()
    assert load(tmp_path)["epoch"] == load(tmp_path, "best")["epoch"] == 1
    assert "optimizer" not in load(tmp_path, "best")

    kept.offer({**at, "epoch": 2}, best=True, now=False)
    at["model"]["w"] += 1  # training continues
    kept.offer({**at, "epoch": 3}, best=False, now=False)
    kept.finish()
    assert load(tmp_path)["epoch"] == load(tmp_path, "best")["epoch"] == 1

    kept.offer({**at, "epoch": 4}, best=False, now=True)
    at["model"]["w"] += 1  # also while the file is being written
    kept.finish()
    assert (load(tmp_path)["epoch"], load(tmp_path, "best")["epoch"]) == (4, 2)
    assert (load(tmp_path)["model"]["w"][0], load(tmp_path, "best")["model"]["w"][0]) == (2, 1)


def test_the_best_epoch_is_written_before_a_later_last_checkpoint(tmp_path, monkeypatch):
    kept, order = Checkpoints(tmp_path, minutes=10), []
    monkeypatch.setattr(checkpoints, "save", lambda folder, which, at: order.append((which, at["epoch"])))
    kept.offer(state(1), best=False, now=False)
    kept.offer(state(2), best=True, now=False)
    kept.write(state(2))  # in the middle of the third epoch
    kept.write(state(2))
    kept.finish()
    assert order == [("last", 1), ("best", 2), ("last", 2), ("last", 2)]


def test_steps_or_minutes_make_a_checkpoint_due_whichever_come_first(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    kept = Checkpoints(tmp_path, minutes=1, steps=3)
    assert [kept.step() for _ in range(4)] == [False, False, True, True]
    kept.write(state(0))
    assert [kept.step() for _ in range(2)] == [False, False]
    now[0] += 60
    assert kept.step()
    kept.write(state(0))
    assert not kept.step()


def test_with_zero_minutes_every_checkpoint_is_written(tmp_path):
    kept = Checkpoints(tmp_path, minutes=0)
    for epoch in (1, 2):
        assert kept.step()
        kept.offer({"epoch": epoch}, best=False, now=False)
        kept.finish()
        assert load(tmp_path)["epoch"] == epoch


@pytest.mark.parametrize("notice", ["step", "write", "finish"])
def test_the_next_call_raises_the_error_of_a_failed_write(tmp_path, monkeypatch, notice):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save", full)
    kept = Checkpoints(tmp_path, minutes=10)
    kept.write(state(1))
    while not kept.writing.done():
        time.sleep(0.001)
    calls = {"step": kept.step, "write": lambda: kept.write(state(2)), "finish": kept.finish}
    with pytest.raises(OSError, match="No space left"):
        calls[notice]()


def test_training_continues_while_a_file_is_written(tmp_path, monkeypatch):
    begun, gate, saved = threading.Event(), threading.Event(), []

    def slow(folder, which, at):
        begun.set()
        assert gate.wait(60)
        saved.append(at["epoch"])

    monkeypatch.setattr(checkpoints, "save", slow)
    kept = Checkpoints(tmp_path, minutes=10)
    kept.write(state(1))
    assert begun.wait(60)
    assert not kept.step(), "it does not wait"
    assert saved == []
    gate.set()
    kept.finish()
    assert saved == [1]

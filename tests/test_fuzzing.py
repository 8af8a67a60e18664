"""Damaged and hostile input of every kind: only a ValueError with one sentence comes out.

The default run draws the same examples each time. ``-m slow`` draws twenty times as many new ones.
"""

import contextlib
import copy
import errno
import io
import json
import math
import tempfile
import warnings
from functools import cache
from pathlib import Path
from unittest.mock import patch

import jaxtyping
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import write_photos
from divconq.analysis import read_run
from divconq.checks import SettingError
from divconq.cli import COMMANDS, main
from divconq.cli.tables import summary
from divconq.config import PLACES, Config, from_yaml, plain_settings, to_yaml
from divconq.data.sources.table import read_table
from divconq.experiments.comparison import compare
from divconq.experiments.flags import parse_changes
from divconq.experiments.results import Result, append_result, read_results
from divconq.experiments.runner import plan
from divconq.experiments.table import parse_table
from divconq.losses import check_loss
from divconq.recorder import Recorder
from divconq.runs import checkpoints
from divconq.runs.checkpoint_types import check_types
from divconq.runs.folder import Run, conquered_model
from divconq.training.seeds import generator_states
from divconq.training.setup import prepare
from tiny_settings import TINY

NAN, INF = float("nan"), float("inf")
NUMBERS = [0, -1, 1, 7, 10**12, 2**62, 10**18, -(10**18), 10**400, 0.5, 1e300, -1e300, 5e-324, NAN, INF, -INF]
WORDS = [
    "",
    " ",
    "3 ",
    "3",
    "1_000",
    "0x10",
    "010",
    "1:30",
    "٣",
    "1e5",
    "nan",
    "abc",
    "[1, 2]",
    "{a: 1}",
    "\0",
    "é" * 300,
]
SINGLE = [*NUMBERS, *WORDS, True, False, None]
PLAIN = st.one_of(
    st.sampled_from(SINGLE),
    st.lists(st.sampled_from(SINGLE), max_size=4),
    st.dictionaries(st.sampled_from(["a", "alpha", "train", ""]), st.sampled_from(SINGLE), max_size=3),
)
PYTHON = [np.int64(3), np.float32(0.5), np.bool_(True), np.array([1, 2]), object(), b"x", 1j, {1, 2}, {1: 2}]
TENSORS = st.sampled_from([
    torch.zeros(0), torch.zeros(()), torch.zeros(3), torch.zeros(2, 2), torch.tensor([5, -1]), torch.tensor(10**9),
    torch.tensor(True), torch.full((4,), NAN), torch.zeros(3, dtype=torch.float16), torch.zeros(2, 2, 2),
])  # fmt: skip


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    """Types of arguments are not checked at run time, so that our own errors are reached."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def fuzzed(examples, **drawn):
    """Make a test of a check on drawn input."""

    def decorate(check):
        @pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
        def test(times):
            options = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
            settings(max_examples=examples * times, derandomize=times == 1, **options)(
                given(**drawn)(check)
            )()

        return test

    return decorate


def works(act):
    """Return whether ``act`` works. If not, it must raise a ValueError of our own, with one sentence."""
    said = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act()
    except ValueError as error:
        said = error
    except OSError as error:  # errors of the system are shown in its own words
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False
    if said is None:
        return True
    assert type(said) in (ValueError, SettingError), repr(said)
    assert 10 < len(str(said)) < 2000, said
    assert "\n" not in str(said).strip(), said
    return False


def refused(act):
    assert not works(act), "this must be refused"


# Settings


@pytest.mark.parametrize("name", PLACES)
def test_every_setting_refuses_hostile_values_or_keeps_them(name):
    for value in [
        *SINGLE,
        [],
        {},
        [1, 2],
        (1.0, 0.1),
        (-1, 2, 3),
        [None],
        {"a": NAN},
        {"a": object()},
        *PYTHON,
    ]:
        if works(lambda value=value: Config.of(**{name: value})):
            config = Config.of(**{name: value})
            assert from_yaml(to_yaml(config)) == config, (name, value)
            numbers = np.ravel(np.array(plain_settings(config)[name], dtype=object))
            assert all(math.isfinite(x) for x in numbers if isinstance(x, float)), (name, value)


@fuzzed(150, name=st.sampled_from(list(PLACES)), value=PLAIN)
def test_flags_of_a_table(name, value):
    works(lambda: parse_changes([f"{name}={value if isinstance(value, str) else json.dumps(value)}"]))


@fuzzed(
    100,
    case=st.sampled_from([
        ("margin", None), ("triplet", None), ("npairs", None), ("soft_triplet", None),
        ("TripletMarginLoss", "TripletMarginMiner"), ("ContrastiveLoss", "MultiSimilarityMiner"),
        ("ProxyAnchorLoss", None), ("ArcFaceLoss", "BatchHardMiner"),
    ]),
    name=st.sampled_from([
        "alpha", "beta", "margin", "scale", "num_classes", "embedding_size", "sampling_dim", "swap", "learn_beta",
    ]),
    mined=st.sampled_from(["margin", "epsilon", "type_of_triplets", None]),
    value=PLAIN,
)  # fmt: skip
def test_arguments_of_losses_and_miners(case, name, mined, value):
    loss, miner = case
    works(lambda: check_loss(loss, {name: value}, dim=4))
    if miner and mined:
        works(lambda: check_loss(loss, dim=4, miner=miner, miner_arguments={mined: value}))


# Config files


def damage(content, draw):
    """Return bytes with a few of them changed, cut or doubled."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["byte", "cut", "insert", "double"]))
        if kind == "byte" and content:
            content[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place : place + draw(st.integers(1, 50))]
        elif kind == "insert":
            content[place:place] = draw(
                st.sampled_from(
                    [b"\0", b"\xff", b"\n", b"\t", b"&a ", b"*a ", b"[", b"{", b"- ", b": ", b'"']
                )
            )
        else:
            content += content[place : place + 200]
    return bytes(content)


def set_anywhere(value, draw, new):
    """Replace, delete or add a value at a random place of nested tables and lists."""
    while isinstance(value, (dict, list)) and value:
        keys = sorted(value, key=repr) if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(list(keys)))
        deeper = isinstance(value[key], (dict, list)) and value[key] and draw(st.booleans())
        if not deeper:
            how = draw(st.sampled_from(["replace", "replace", "delete", "add"]))
            if how == "delete":
                del value[key]
            elif how == "add" and isinstance(value, dict):
                value[draw(st.sampled_from(["epoch", "k_max", "zzz", 3]))] = new
            else:
                value[key] = new
            return
        value = value[key]


@contextlib.contextmanager
def run_folder(config=None, **files):
    with tempfile.TemporaryDirectory() as place:
        run = Run.create(Path(place, "run"), config or TINY)
        for name, content in files.items():
            (run.folder / name.replace("__", ".")).write_bytes(content)
        yield run.folder


@fuzzed(80, data=st.data())
def test_config_files_with_damaged_bytes(data):
    with run_folder(config__yaml=damage(to_yaml(TINY).encode(), data.draw)) as folder:
        works(lambda: Run.open(folder))
        works(lambda: main_of("train", "--resume", str(folder)))


@fuzzed(150, data=st.data(), value=PLAIN)
def test_config_files_with_other_values(data, value):
    settings_ = yaml.safe_load(to_yaml(TINY))
    set_anywhere(settings_, data.draw, value)
    works(lambda: from_yaml(yaml.safe_dump(settings_)))


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS, LAUGHS + "loss:\n  args: {alpha: *a39}\n", "a: &a [*a]", "loss:\n  args: &a {b: *a}", "&a {a: *a}",
        "[" * 2000, "{a: " * 2000, "- " * 2000, "k_max: 2\nk_max: 4", "division: {k_max: 2}\nk_max: 4", "{? [1]: 2}",
        "loss:\n\targs: {}", "a\0b", "data: [1, 2]", "- 1", "3", '"', "!!python/object/apply:os.system [ls]",
        "evaluation: {ks: &k [*k]}", "x" * 10**7, "epochs: " + "9" * 10_000, "epochs: 010_0", "epochs: 1:30",
        "loss: {args: {alpha: 2020-01-01, 3: 4}}", "evaluation: [1]", "<<: 3", "<<: [1, {a: *b}]", "? {a: 1}\n: 2",
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused_at_once(text):
    refused(lambda: from_yaml(text))
    works(lambda: parse_table("t", text))


def test_yaml_reads_numbers_as_they_are_written():
    assert from_yaml("epochs: 010").optimisation.epochs == 10, "not the octal 8"
    assert parse_changes(["data=2020-01-01"]) == {"data": "2020-01-01"}
    assert parse_changes(["data=1:30"]) == {"data": "1:30"}, "not 90"


# Logs

RECORD = {
    "k": 1,
    "loss": 0.5,
    "recall@1": 0.5,
    "map@r": 0.2,
    "train_recall@1": 0.9,
    "seconds": {"train": 1.5, "evaluate": 1},
}
LOG = [{"epoch": epoch, **RECORD} for epoch in (1, 2, 3, 4)]


def read_log(folder):
    records = Run.open(folder).metrics()
    if records and "recall@1" in records[-1]:
        summary(records, "recall@1", 4, folder)
    compare([folder])
    record = read_run(folder)
    for name in ("loss", "recall@1", "k"):
        record.curve(name)
    Run.open(folder).rewind(2, 2, TINY)


@fuzzed(100, data=st.data())
def test_logs_with_damaged_bytes(data):
    content = "".join(json.dumps(record) + "\n" for record in LOG).encode()
    with run_folder(metrics__jsonl=damage(content, data.draw)) as folder:
        works(lambda: read_log(folder))


@fuzzed(150, data=st.data(), value=PLAIN)
def test_logs_with_other_values(data, value):
    log = copy.deepcopy(LOG)
    set_anywhere(log, data.draw, value)
    with run_folder(metrics__jsonl="\n".join(map(json.dumps, log)).encode()) as folder:
        works(lambda: read_log(folder))


@pytest.mark.parametrize(
    "line",
    [
        "5", "[1]", '"x"', "null", "{}",
        '{"epoch": "2"}', '{"epoch": 2.0}', '{"epoch": -1}', '{"epoch": true}', '{"epoch": 1}',
        '{"epoch": 0}', '{"epoch": 2, "loss": "low"}', '{"epoch": 2, "loss": [1]}', '{"epoch": 2, "seconds": 3}',
        '{"epoch": 2, "seconds": {"train": "long"}}', '{"epoch": 2, "k": {}}',
        '{"epoch": 2, "loss": 1' + "0" * 400 + "}",
        "[" * 5000,
    ],
)  # fmt: skip
def test_a_line_that_is_not_the_record_of_an_epoch_is_refused(line):
    content = f"{json.dumps(LOG[0])}\n{line}\n{json.dumps(LOG[3])}\n".encode()
    with run_folder(metrics__jsonl=content) as folder:
        refused(lambda: Run.open(folder).metrics())
        refused(lambda: Run.open(folder).rewind(2, 2, TINY))
        assert (folder / "metrics.jsonl").read_bytes() == content, "nothing is lost"


# Checkpoints


@cache
def job():
    """A run of a second, in the middle of its second epoch."""
    place = tempfile.mkdtemp()
    config = TINY.replace(data=str(write_photos(Path(place, "photos"))), epochs=2, ema=0.9)
    recorder = Recorder(prepare(config), Path(place, "run"))
    made, f = recorder.job, torch.rand(12, 3, 16, 16)
    made.step()(f, made.train.labels[:12], 0)  # fills the moments of Adam
    recorder.generators = generator_states(made.device)
    return recorder, recorder._state(torch.tensor([0.5, 0.25]))


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key in value:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def with_value(state, path, new):
    """Return the state with another value at a path; tables are copied, tensors are shared."""
    if not path:
        return new
    return {**state, path[0]: with_value(state[path[0]], path[1:], new)}


def without(state, path):
    if len(path) == 1:
        return {name: value for name, value in state.items() if name != path[0]}
    return {**state, path[0]: without(state[path[0]], path[1:])}


def read_checkpoint(state):
    """Read a checkpoint with these contents in each of the three ways."""
    recorder, _ = job()
    outcomes = []
    with run_folder(recorder.config) as folder:
        checkpoints.save(folder, "last", state)
        for read in (
            lambda: recorder._restore(checkpoints.resume(folder)),
            lambda: conquered_model(recorder.config, Run.open(folder).load()),
            lambda: read_run(folder).snapshot(),
        ):
            outcomes.append(works(read))
    return outcomes


def test_a_whole_checkpoint_is_read():
    assert read_checkpoint(job()[1]) == [True, True, True]


def test_every_entry_of_a_checkpoint_is_checked():
    recorder, state = job()
    for path in leaves(state):
        for wrong in ("wrong", [1], {"a": 2}, 10**6):
            changed = with_value(state, path, wrong)
            resumed = works(lambda changed=changed: (check_types(changed), recorder._restore(changed)))
            right = path[-1] in ("epoch", "best", "best_k", "divided_at") and wrong == 10**6
            right |= path == ("seconds",) and wrong == {"a": 2}
            assert resumed == right, (path, wrong)


@fuzzed(80, data=st.data(), value=st.one_of(PLAIN, TENSORS))
def test_checkpoints_with_other_values(data, value):
    _, state = job()
    path = data.draw(st.sampled_from(list(leaves(state))))
    path = path[: data.draw(st.integers(1, len(path)))]
    missing = data.draw(st.booleans())
    read_checkpoint(without(state, path) if missing else with_value(state, path, value))


@fuzzed(40, data=st.data())
def test_checkpoints_with_damaged_bytes_are_refused(data):
    with run_folder() as folder:
        checkpoints.save(folder, "last", {"epoch": 1, "model": {"w": torch.ones(20)}})
        file = folder / "last.pt"
        whole = file.read_bytes()
        file.write_bytes(damage(whole, data.draw))
        if file.read_bytes() != whole:
            refused(lambda: checkpoints.load(folder))


# Tables of experiments, and results

TABLE = {
    "title": "T", "preset": "demo", "seeds": [0, 1], "baseline": "plain", "common": {"epochs": 3, "loss": "margin"},
    "metrics": ["recall@1", "nmi"],
    "rows": {
        "plain": {"flags": {"k_max": 1}, "paper": {"recall@1": 60.5}}, "ours": {"title": "Ours", "flags": {"k_max": 2}},
    },
}  # fmt: skip


@fuzzed(150, data=st.data(), value=PLAIN)
def test_tables_of_experiments_with_other_values(data, value):
    table = copy.deepcopy(TABLE)
    set_anywhere(table, data.draw, value)
    works(lambda: plan(parse_table("t", yaml.safe_dump(table)), Path("nowhere")))


@fuzzed(60, data=st.data())
def test_tables_of_experiments_with_damaged_bytes(data):
    text = damage(yaml.safe_dump(TABLE).encode(), data.draw).decode(errors="replace")
    works(lambda: plan(parse_table("t", text), Path("nowhere")))


def stored_result():
    metrics = {"epoch": [1, 2], "recall@1": [None, 0.5], "seconds_train": [1.5, 1]}
    result = Result(
        "t", "plain", 0, plain_settings(TINY), {}, {}, "c", "h", "t", "2024", 3.0, metrics, "t-plain-0"
    )
    with tempfile.TemporaryDirectory() as place:
        append_result(Path(place, "t.jsonl"), result)
        return Path(place, "t.jsonl").read_text()


def read_stored(content):
    with tempfile.TemporaryDirectory() as place:
        Path(place, "t.jsonl").write_bytes(content)
        if works(lambda: read_results(Path(place))):
            works(lambda: compare([Path(place)]))


@fuzzed(150, data=st.data(), value=PLAIN)
def test_results_with_other_values(data, value):
    values = json.loads(stored_result())
    set_anywhere(values, data.draw, value)
    read_stored(json.dumps(values).encode() + b"\n")


@fuzzed(80, data=st.data())
def test_results_with_damaged_bytes(data):
    read_stored(damage(stored_result().encode(), data.draw))


# Tables of images


@cache
def photos():
    return write_photos(Path(tempfile.mkdtemp(), "photos"), classes=4, images=3, size=12)


def image_rows():
    for label in range(4):
        for number in range(3):
            split = "train" if label < 2 else "test"
            yield {
                "path": f"class{label:02d}/{number}.png",
                "label": f"c{label}",
                "split": split,
                "camera": number,
            }


def read_images(name, content):
    file = photos() / name
    file.write_bytes(content)
    works(lambda: read_table(file, size=8, workers=1))


@fuzzed(60, data=st.data())
def test_csv_tables_with_damaged_bytes(data):
    rows = list(image_rows())
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    read_images("list.csv", damage("\n".join(lines).encode(), data.draw))


@fuzzed(60, data=st.data(), value=PLAIN)
def test_csv_tables_with_other_values(data, value):
    rows = list(image_rows())
    set_anywhere(rows, data.draw, value)
    fields = list(dict.fromkeys(str(key) for row in rows if isinstance(row, dict) for key in row))
    lines = [",".join(fields)]
    lines += [
        ",".join(str(row.get(name, "")) for name in fields) if isinstance(row, dict) else str(row)
        for row in rows
    ]
    read_images("list.csv", "\n".join(lines).encode(errors="replace"))


@fuzzed(40, data=st.data(), column=st.sampled_from(["path", "label", "split", "camera"]))
def test_parquet_tables(data, column):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = list(image_rows())
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    value = data.draw(st.sampled_from([None, NAN, 3, "", "x", [1], {"a": 1}, b"\xff", True]))
    columns[column] = [value] * len(rows) if data.draw(st.booleans()) else columns[column]
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    content = stream.getvalue()
    read_images("list.parquet", damage(content, data.draw) if data.draw(st.booleans()) else content)


# Command lines


def main_of(*words):
    """Run a command up to the point where work would start; bad input must end with code 2 and one sentence."""
    said = io.StringIO()
    idle = dict.fromkeys(COMMANDS, lambda arguments: None)
    with (
        patch.dict("divconq.cli.COMMANDS", idle),
        patch("divconq.cli.training_command._train", lambda *arguments, **options: None),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main(list(words))
        except SystemExit as stop:
            if stop.code:
                sentence = said.getvalue().strip().replace("\n", " ")
                raise (ValueError if stop.code == 2 else AssertionError)(sentence) from None


FLAGS = [
    f"--{name.replace('_', '-')}" for name in PLACES if name not in ("import_file", "loss_args", "miner_args")
]
COMMAND_WORDS = [
    "train",
    "demo",
    "eval",
    "embed",
    "analyze",
    "compare",
    "data",
    "check",
    "reproduce",
    "bench",
    "presets",
    "show",
]
OTHER_FLAGS = [
    "--out",
    "--resume",
    "--loss.alpha",
    "--miner.margin",
    "--points",
    "--max-minutes",
    "--json",
    "--zzz",
    "--",
    "-",
]


@fuzzed(20, flag=st.sampled_from(FLAGS), value=st.sampled_from([*map(str, NUMBERS), *WORDS]))
def test_flags_with_hostile_values(flag, value):
    works(lambda: main_of("train", "demo", flag, value))


@fuzzed(
    30,
    words=st.lists(
        st.sampled_from([*COMMAND_WORDS, *FLAGS, *OTHER_FLAGS, *WORDS, *map(str, NUMBERS)]), max_size=6
    ),
)
def test_command_lines_of_any_words(words):
    works(lambda: main_of(*words))

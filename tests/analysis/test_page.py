import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

import made_up_findings as made_up
from divconq.analysis import write_report
from divconq.analysis.chapters import CHAPTERS
from divconq.analysis.chapters.factors import WEAK
from divconq.analysis.chapters.training import TRAINING
from divconq.analysis.report.page import render_page, summarise

SECTIONS = [*(chapter.name for chapter in CHAPTERS), "missing"]
PLOTS = [name for chapter in CHAPTERS for name in chapter.plots]
NOTES = [
    "Recall@1",
    "MAP@R",
    "Loss",
    "K",
    "Overlap",
    "Dead entries",
    "Learning rate",
    "Train against test",
    "Time by phase",
    "NMI",
    "Images that kept their cluster",
    "Consistency of several runs",
    "Sizes",
    "Factors of a cluster",
    "Split classes",
    "Masks",
    "Overlap of masks",
    "Shared dimensions and mass",
    "Recall of each subspace",
    "Factors of a subspace",
    "Corrected and misled",
    "Hubness",
    "Effective dimension",
    "Variance within and between classes",
    "Nearest positive over nearest negative",
    "ED₁ and ED₁₀",
    "UMAP",
    "Worst queries",
    "Confused classes",
    "Likely label errors",
    "Near-duplicates",
]
VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """Collects all elements and texts, and checks that elements are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def made(findings, pictures=None, svgs=None):
    shown = made_up.pictures_of(findings) if pictures is None else pictures
    return render_page(findings, {} if svgs is None else svgs, shown)


def text(html):
    words = read(re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)).words
    return " ".join(" ".join(words).split())


@pytest.fixture(scope="module")
def full():
    findings = made_up.full()
    return made(findings, svgs=made_up.svgs(findings))


def test_every_section_appears_once_and_in_the_contents(full):
    reader = read(full)
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids must be unique, also between figures"
    links = [attributes["href"] for tag, attributes in reader.elements if tag == "a"]
    for name in SECTIONS:
        assert name in ids
        assert f"#{name}" in links
    assert set(PLOTS) <= set(ids)
    assert [tag for tag, _ in reader.elements].count("h1") == 1


def test_every_note_cites_the_paper(full):
    notes = re.findall(
        r'<div class="note"><h4>(.*?)</h4>.*?<p class="where">(.*?)</p></div>', full, re.DOTALL
    )
    assert [title for title, _ in notes] == NOTES
    for _, where in notes:
        assert where.startswith(("Paper, s", "Not in the paper", "Measures the"))


def test_every_image_has_alt_text_and_size(full):
    findings = made_up.full()
    pictures = made_up.pictures_of(findings)
    images = [attributes for tag, attributes in read(full).elements if tag == "img"]
    assert len(images) == len(list(made_up.images_in(findings)))
    shown = {image["src"] for image in images}
    expected = {f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" for jpeg in pictures.values()}
    assert shown == expected
    alts = {image["alt"] for image in images}
    assert any("bird 0, in cluster 1, birds/bird 0/0000.jpg" in alt for alt in alts)
    assert all(image["loading"] == "lazy" and int(image["width"]) > 0 for image in images)


def test_right_and_wrong_are_also_marked_without_colour(full):
    right = re.findall(r'<li class="tile right".*?</li>', full)
    wrong = re.findall(r'<li class="tile wrong".*?</li>', full)
    assert right
    assert wrong
    assert all("<b>✓</b>" in tile and "of the query&#39;s class" in tile for tile in right)
    assert all("<b>✗</b>" in tile and "of another class" in tile for tile in wrong)


def test_images_without_thumbnail_show_their_class():
    html = made(made_up.full(), pictures={})
    assert "<img" not in html
    assert '<span class="none" style="width:76px">wren</span>' in html


def test_names_are_escaped():
    findings = made_up.with_names(made_up.full(), made_up.NASTY)
    html = made(findings, svgs=made_up.svgs(findings))
    assert "<script" not in html
    assert "$x_1$" in html, "dollar signs stay"
    reader = read(html)
    assert made_up.NASTY in " ".join(reader.words)
    assert {tag for tag, _ in reader.elements} & {"script", "iframe", "object", "embed"} == set()
    assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)


def test_the_page_has_no_external_links(full):
    for tag, attributes in read(full).elements:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes[name][:60])
    style = re.search(r"<style>(.*?)</style>", full, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize(
    "findings", [made_up.one_cluster(), made_up.nothing()], ids=["one cluster", "nothing"]
)
def test_incomplete_findings_list_what_is_missing(findings):
    html = made(findings, svgs=made_up.svgs(findings))
    said = text(html)
    for name in SECTIONS:
        assert f'<section id="{name}">' in html
    for sentence in (*findings.missing, *findings.chapters["training"][0].missing):
        assert said.count(sentence) == 1
    assert "There is nothing to show here" in said
    assert "nan" not in said.lower().split()


def test_one_cluster_gives_one_sentence_about_subspaces():
    said = text(made(made_up.one_cluster()))
    assert "There is one subspace, which is the whole space: R@1 78.0% of 1,200 queries." in said
    assert "correct each other" not in said


def test_empty_lists_have_a_sentence():
    full = made_up.full()
    clusters, subspaces, errors = (full.chapters[name] for name in ("clusters", "subspaces", "errors"))
    galleries = ((), *clusters.galleries[1:])
    chapters = {
        "clusters": dataclasses.replace(clusters, split_classes=(), galleries=galleries),
        "subspaces": dataclasses.replace(subspaces, retrievals=()),
        "errors": dataclasses.replace(errors, worst=(), confused=(), mislabelled=(), duplicates=()),
        "map": None,
    }
    bare = made_up.replaced(full, chapters, missing=())
    said = text(made(bare))
    assert said.count("None was found.") == 4
    assert "No class is split" in said
    assert re.search(r"cluster 1 \d+ images Empty\. cluster 2", said)
    assert "There is no query for which most subspaces and their sum disagree" in said
    assert re.search("Map There is nothing to show here: see what is missing", said)
    assert "Nothing: the report is complete." in said


def test_ten_thousand_classes_and_thirty_two_subspaces():
    findings = made_up.many()
    html = made(findings, svgs=made_up.svgs(findings))
    read(html)
    assert "of 10,000 classes for training" in text(html)
    assert html.count("<summary>each of 32 subspaces</summary>") == 2


def test_the_page_mentions_a_sample_of_queries():
    findings = made_up.full()
    sampled = dataclasses.replace(findings.chapters["spaces"][0], train=made_up.geometry(59_551))
    said = "Ratio, ED and hubness of demo, train, are from a random sample of 10,000 images"
    for spaces, there in ((findings.chapters["spaces"], False), ((sampled,), True)):
        html = render_page(made_up.replaced(findings, {"spaces": spaces}), {}, {})
        assert (said in html) is there


def test_the_summary_states_the_numbers():
    said = {topic: " ".join(words) for topic, words in summarise(made_up.full()).items()}
    last = made_up.training().curves["recall@1"][1][-1]
    other = made_up.training("baseline", seed=4, last=0.74, divisions=()).curves["recall@1"][1][-1]
    assert f"the same class in {100 * last:.1f}% of cases (R@1, epoch 12)" in said["Training"]
    assert f"The last epoch is {100 * (last - other):.1f} points above that of baseline" in said["Training"]
    assert "divided 5 times, finally into K = 4 clusters" in said["Clusters"]
    assert (
        "78.0% of 1,200 queries, 10.0 points above the best single subspace (subspace 4, 68.0%)"
        in said["Subspaces"]
    )
    assert "For 61 queries the sum is right although most subspaces are wrong; for 9 it" in said["Subspaces"]
    assert "40 of 128 principal components hold 95% of the variance" in said["The space"]
    assert "2 images whose neighbours agree on another class and 2 pairs of near-duplicates" in said["Errors"]


def test_the_summary_states_the_dead_entries_of_the_masks():
    run = made_up.training()
    dead = "At epoch 12, 10.0% of the entries of the learned masks are dead, and the mean cosine of two masks is 0.90."
    assert dead in summarise(made_up.full())["Training"]
    old = {name: curve for name, curve in run.curves.items() if name != "dead_masks"}
    before = made_up.replaced(made_up.full(), {"training": (dataclasses.replace(run, curves=old),)})
    assert "dead" not in " ".join(summarise(before)["Training"])


def test_a_log_of_an_older_version_has_no_dead_entries_to_draw():
    run, plots = made_up.training(), TRAINING.plots
    without = {name: curve for name, curve in run.curves.items() if name != "dead_masks"}
    old = (dataclasses.replace(run, curves=without),)
    assert plots["dead-masks"].draw((run,)) is not None
    assert plots["dead-masks"].draw(old) is None
    assert plots["overlap"].draw(old) is not None
    steps = run.curves["overlap"][0]
    fixed = dataclasses.replace(run, curves=without | {"overlap": (steps, (0.0,) * len(steps))})
    assert plots["overlap"].draw((fixed,)) is None, "masks that are not trained have no overlap to show"


def test_the_summary_states_a_loss_of_the_sum():
    full = made_up.full()
    subspaces = dataclasses.replace(full.chapters["subspaces"], final_recall=0.6)
    worse = made_up.replaced(full, {"subspaces": subspaces})
    assert "8.0 points below the best single subspace" in " ".join(summarise(worse)["Subspaces"])


def test_weak_factors_are_left_out_of_the_summary():
    nan = float("nan")
    factors = made_up.factor_table(("pose", "colour"), ((0.02, 0.5), (0.01, 0.02), (nan, nan), (0.3, nan)))
    assert factors.strongest(WEAK) == [("colour", 0.5), None, None, ("pose", 0.3)]
    full = made_up.full()
    clusters = dataclasses.replace(full.chapters["clusters"], factors=factors)
    said = " ".join(summarise(made_up.replaced(full, {"clusters": clusters}))["Clusters"])
    assert (
        "clusters follow these known factors: colour (cluster 1), pose (cluster 4); NMI 0.30 to 0.50." in said
    )


def test_write_report_replaces_and_removes_old_figures(tmp_path, monkeypatch):
    monkeypatch.setattr("divconq.analysis.report.assemble.draw_figures", made_up.drawn)
    findings = made_up.full()
    report = write_report(findings, made_up.pictures_of(findings), tmp_path / "out")
    assert report == tmp_path / "out" / "report.html"
    names = {f"{name}.{kind}" for name in PLOTS for kind in ("svg", "png")}
    assert {file.name for file in (tmp_path / "out" / "figures").iterdir()} == names
    kept = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert kept["subspaces"]["final_recall"] == 0.78
    (tmp_path / "out" / "figures" / "mine.txt").write_text("not a figure")
    write_report(made_up.nothing(), {}, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out" / "figures").iterdir()] == ["mine.txt"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "analysis.json",
        "figures",
        "report.html",
    ]

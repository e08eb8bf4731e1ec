"""The whole way at the terminal: from phantoms to scores, and the demo's report."""

import html
import json
import os
import re
import shlex
import signal
from html.parser import HTMLParser

import pytest

from continual_segment.cli.main import main, make_parser
from continual_segment.data.prepared import PreparedDataset
from continual_segment.files import read_labels
from continual_segment.model import Model
from continual_segment.viewer.cases import find_cases


@pytest.fixture
def conseg(capsys):
    """Run a command and give what it printed; it must end with exit code 0."""

    def run(command, *paths, code=0):
        words = [
            str(paths[int(word[1:])]) if re.fullmatch(r"%\d", word) else word for word in command.split()
        ]
        assert main(words) == code
        return capsys.readouterr().out

    return run


def test_from_phantoms_to_scores(conseg, tmp_path, contents):
    raw, model, out = tmp_path / "raw", tmp_path / "model", tmp_path / "out"
    folders = {"totalseg": raw / "Dataset901_totalseg", "chest": raw / "Dataset902_chest"}
    for name, folder in folders.items():
        prepared = tmp_path / f"{name}_prepared"
        conseg(f"phantom %0 --dataset {name} --organs demo --cases 6 --spacing 16 16 16 --workers 1", raw)
        assert (folder / "dataset.json").is_file()
        source = f"--model {model}" if model.exists() else "--preset tiny"
        said = conseg(f"prepare %0 -o %1 --workers 1 {source}", folder, prepared)
        assert "6 cases" in said
        said = conseg(f"learn %0 -m %1 --preset tiny --name {name} --licence CC0", prepared, model)
        assert f"now has pack '{name}': " in said
        if name == "totalseg":
            base = contents(model)

    both = contents(model)
    assert {"chest  ", "totalseg  "} <= {
        line[: len(line.split()[0]) + 2] for line in conseg("pack list -m %0", model).splitlines()
    }
    assert json.loads(conseg("pack info chest -m %0", model))["licence"] == "CC0"
    conseg("pack export chest -m %0 -o %1", model, tmp_path / "shared.pack")
    assert json.loads(conseg("pack info %0", tmp_path / "shared.pack"))["name"] == "chest"
    assert "Left in" in conseg("pack remove chest -m %0", model)
    assert contents(model) == base
    conseg("pack add %0 -m %1", tmp_path / "shared.pack", model)
    assert contents(model) == both
    conseg("pack add %0 -m %1 --name again", tmp_path / "shared.pack", model)
    assert Model.open(model).pack_names == ("again", "chest", "totalseg")
    conseg("pack remove again -m %0", model)
    assert conseg("verify %0", model).count("outputs bit-identical") == 2

    conseg("segment %0 -m %1 -o %2", folders["chest"] / "imagesTr", model, out)
    assert len(list(out.glob("*.nii.gz"))) == 6
    assert {"esophagus", "trachea"} <= set(read_labels(next(out.iterdir())).names.values())
    conseg("evaluate %0 %1 -o %2 --workers 1", out, folders["chest"], tmp_path / "scores")
    test_cases = f"--prepared {tmp_path / 'chest_prepared'} --json"
    scores = json.loads(conseg(f"evaluate %0 %1 {test_cases} --workers 1", out, folders["chest"]))
    assert {path.name for path in (tmp_path / "scores").iterdir()} >= {
        "scores.csv",
        "organs.csv",
        "evaluation.json",
    }
    assert 0 <= scores["mean"]["dice"] <= 1
    assert (scores["split"], scores["cases_per_split"]["train"]) == ("test", 0)
    assert json.loads((tmp_path / "scores" / "evaluation.json").read_text())["cases_per_split"]["train"] > 0


class Page(HTMLParser):
    """Headings, and every address the page points to."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.addresses, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.inside = tag
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]

    def handle_data(self, text):
        if self.inside in ("h1", "h2"):
            self.headings.append(text)
            self.inside = None


def test_the_demo_writes_a_report_that_needs_nothing_else(conseg, tmp_path, caplog):
    out = tmp_path / "demo"
    with caplog.at_level("INFO"):
        assert "report.html" in conseg("demo --preset tiny --cases 6 --out %0", out)
    rows = [line.split() for line in caplog.messages[-1].splitlines()[1:5]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("totalseg", "0.000"), ("chest", "0.000"), ("headneck", "0.000"), ("esophagus", "-")
    ]  # fmt: skip
    text = (out / "report.html").read_text()
    page = Page(text)
    for heading in (
        "Step by step",
        "What it sees",
        "Nothing is forgotten",
        "Scores per organ",
        "What it cost to store",
        "Learning curves",
        "The commands behind it",
    ):
        assert heading in page.headings
    assert len(page.addresses) >= 4  # a picture per dataset
    captions = re.findall(r"<figure.*?<figcaption>(.*?)</figcaption></figure>", text, re.DOTALL)
    charts = text.count("<img") + text.count('<svg class="chart"') + text.count('<div class="sizes"')
    assert text.count('<svg class="chart"') >= 5  # what is kept, and the curves of each dataset
    assert len(captions) == charts == text.count("<figure")
    assert all(caption.endswith(".") for caption in captions)
    for support in ('name="viewport"', "prefers-color-scheme: dark", "@media print"):  # phone, dark, paper
        assert support in text
    assert text.count("<details open>") == text.count("<details")  # what is folded is not printed
    assert f"conseg view {out / 'examples'}" in text
    assert [len(case.labels) for case in find_cases([out / "examples"])] == [3, 3, 3, 3]
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in page.addresses)
    assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", text)
    assert "url(http" not in text
    assert text.count("outputs bit-identical") == 4
    assert "FAIL" not in re.sub(r"base64,[^\"']+", "", text)  # pictures may hold any letters
    for name in ("totalseg", "chest", "headneck", "esophagus"):
        assert f"conseg learn {out / 'prepared' / name}" in text.replace("&#39;", "'")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    scores = json.loads((out / "scores.json").read_text())
    assert scores["verified"]
    assert [row["relative"] for row in scores["forgetting"]] == pytest.approx(
        [0] * len(scores["forgetting"]), abs=0
    )
    assert Model.open(out / "model").pack("esophagus").anomalies == ("esophageal tumour",)

    the_printed_commands_score_test_cases_alone(text, out)


def the_printed_commands_score_test_cases_alone(text, out):
    """Every line is a command that `conseg` understands; what follows the packs is run as printed."""
    lines = html.unescape(text).partition("conseg demo ")[2].partition("</pre>")[0].split("\n")[2:]
    for line in lines:
        make_parser().parse_args(shlex.split(line)[1:])
    assert [line.split()[1] for line in lines[-3:]] == ["verify", "segment", "evaluate"]
    for line in lines[-3:]:
        assert main(shlex.split(line)[1:]) == 0
    scored = json.loads(next(out.rglob("segmented_scores/*/evaluation.json")).read_text())
    held_out = PreparedDataset.open(out / "prepared" / "esophagus").case_names("test")
    assert scored["split"] == "test"
    assert {row["case"] for row in scored["rows"]} == set(held_out)
    report = json.loads((out / "scores" / "step_4" / "esophagus_merged" / "evaluation.json").read_text())
    assert all(row in scored["rows"] for row in report["rows"])  # which has some of the test cases


def test_a_demo_stopped_in_a_step_goes_on_from_its_checkpoint(tmp_path, monkeypatch, caplog, capsys):
    command = ["demo", "--out", str(tmp_path / "demo"), "--preset", "tiny", "--cases", "4"]

    def stop(path, log):
        if "\n8," in log:
            os.kill(os.getpid(), signal.SIGTERM)  # what Ctrl-C does, also where Ctrl-C is ignored

    monkeypatch.setattr("continual_segment.training.history.write_text", stop)
    assert main(command) == 130
    monkeypatch.undo()
    assert main([*command[:-1], "5"]) == 2
    assert "holds a demo with" in capsys.readouterr().err
    with caplog.at_level("INFO"):
        assert main(command) == 0
    assert "resumes after iteration 8 of 12" in caplog.text
    assert (tmp_path / "demo" / "report.html").is_file()

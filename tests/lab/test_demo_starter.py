"""A demo that adds a pack to the model in the package, for which a tiny model stands here."""

from continual_segment.cli.main import main, make_parser
from continual_segment.lab.demo_starter import ORGANS, StarterDemo, commands, unchanged
from continual_segment.model import Model, starter


def test_the_demo_adds_a_pack_and_proves_that_the_others_are_unchanged(
    shared_model_folder, tmp_path, monkeypatch, contents, caplog
):
    monkeypatch.setattr(starter, "FOLDER", shared_model_folder)
    before, out = contents(shared_model_folder), tmp_path / "out"
    command = ["demo", "--starter", "-o", str(out), "--preset", "tiny", "--cases", "6"]
    with caplog.at_level("INFO"):
        assert main(command) == 0
    assert "ok   encoder.safetensors: same bytes as in the package" in caplog.text
    assert "FAIL" not in caplog.text
    assert contents(shared_model_folder) == before
    model = Model.open(out / "model")
    assert set(model.pack_names) == {"totalseg", "chest", "eyes"}
    assert tuple(organ.name for organ in model.pack("eyes").organs) == ORGANS
    page = (out / "report.html").read_text()
    assert "was added to a model that had 2 packs" in page
    assert "same bytes as in the package" in page
    caplog.clear()
    assert main(command) == 0  # again: all is there


def test_a_file_that_differs_from_the_package_is_found(shared_model_folder, model_folder, monkeypatch):
    monkeypatch.setattr(starter, "FOLDER", shared_model_folder)
    path = model_folder / "packs" / "chest.pack"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = {finding.part: finding.good for finding in unchanged(Model.open(model_folder))}
    assert found.pop("packs/chest.pack") is False
    assert all(found.values())


def test_the_commands_of_the_report_are_ones_that_the_parser_accepts(tmp_path):
    tasks = StarterDemo(tmp_path, "tiny", cases=6, seed=0)
    lines = [line for line in commands(tasks) if line]
    assert lines[0].startswith("conseg demo --starter")
    for line in lines:
        make_parser().parse_args(line.split()[1:])

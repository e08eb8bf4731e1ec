"""The model in the package: opened by name, never changed. A tiny model takes its place here."""

import shutil

import pytest

import continual_segment as cs
from continual_segment.cli.main import main
from continual_segment.errors import ModelError
from continual_segment.learning.anomaly import learn_anomaly
from continual_segment.learning.shrink_pack import shrink_pack
from continual_segment.model import Model, starter
from continual_segment.node.config import read_node_config
from continual_segment.segmentation.quantise import quantise


@pytest.fixture
def package_model(shared_model_folder, tmp_path, monkeypatch):
    """A stand-in for the starter, and an empty folder to work in."""
    folder = tmp_path / "package" / "starter"
    shutil.copytree(shared_model_folder, folder)
    monkeypatch.setattr(starter, "FOLDER", folder)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def test_its_name_opens_it_and_a_path_of_that_name_is_a_folder(package_model, base_folder, tmp_path):
    assert Model.open("starter").folder == package_model
    shutil.copytree(base_folder, tmp_path / "work" / "starter")
    assert Model.open("./starter").pack_names == ("totalseg",)
    assert Model.open(tmp_path / "work" / "starter").pack_names == ("totalseg",)


def test_where_the_name_could_mean_a_model_folder_nothing_is_guessed(package_model, base_folder, tmp_path):
    own = tmp_path / "work" / "starter"
    own.mkdir()
    assert Model.open("starter").folder == package_model  # a folder, but of no model
    own.rmdir()
    shutil.copytree(base_folder, own)
    with pytest.raises(ModelError) as caught:
        Model.open("starter")
    assert str(own) in str(caught.value)
    assert str(package_model) in str(caught.value)
    assert Model.open(str(package_model)).folder == package_model


def test_an_installation_without_it_is_an_error_that_names_the_file(package_model, capsys):
    shutil.rmtree(package_model)
    with pytest.raises(ModelError, match=r"starter/model\.json is missing"):
        Model.open("starter")
    with pytest.raises(SystemExit):
        main(["verify", "starter"])
    assert "no starter model" in capsys.readouterr().err


def test_every_command_that_reads_a_model_takes_the_name(package_model, scan_path, raw_folders, capsys):
    main(["verify", "starter"])
    main(["pack", "list", "-m", "starter"])
    assert main(["segment", str(scan_path), "-m", "starter", "-o", "out", "--quiet"]) == 0
    assert main(["segment", "-m", "starter", str(scan_path), "-o", "out2", "--quiet"]) == 0
    assert main(["pack", "info", "chest", "-m", "starter"]) == 0
    assert main(["pack", "export", "chest", "-m", "starter", "-o", "chest.pack"]) == 0
    assert main(["bodyparts", str(scan_path), "-m", "starter"]) == 0
    capsys.readouterr()
    assert main(["prepare", str(raw_folders["chest"]), "-m", "starter", "-o", "prepared"]) == 0
    assert "conseg starter -o mymodel; conseg learn prepared -m mymodel" in capsys.readouterr().out


def test_the_node_takes_the_name(package_model):
    (config := package_model.parent / "node.toml").write_text(
        'folder = "node"\n[[destinations]]\nname = "a"\nhost = "h"\nport = 104\nae_title = "A"\n'
        '[[rules]]\nmodel = ["starter"]\n'
    )
    (package_model.parent / "other").mkdir()
    config = config.rename(package_model.parent / "other" / "node.toml")
    assert read_node_config(config).rules[0].model == (package_model,)


@pytest.mark.parametrize("spelling", ["starter", "path", "link"])
def test_no_command_changes_it(package_model, datasets, chest_pack, scan_path, contents, spelling, capsys):
    if spelling == "link":
        (package_model.parent / "linked").symlink_to(package_model)
    name = {"starter": "starter", "path": package_model, "link": package_model.parent / "linked"}[spelling]
    chest_pack.write("chest.pack")
    before, beside = contents(package_model), sorted(package_model.parent.iterdir())
    prepared = str(datasets["chest"].folder)
    for command in (
        ["learn", prepared, "--name", "more", "--preset", "tiny"],
        ["learn", prepared, "--anomaly-head", "--preset", "tiny"],
        ["pack", "add", "chest.pack", "--name", "more"],
        ["pack", "remove", "chest"],
        ["pack", "shrink", "chest", prepared, "-o", "small.pack", "--preset", "tiny"],
        ["quantise", "--scans", str(scan_path)],
        ["bodyparts", prepared, "--learn"],
        ["import", "nowhere"],
    ):
        assert main([*command, "-m", str(name)]) == 2, command
        error = capsys.readouterr().err
        assert "read-only" in error, command
        assert "conseg starter -o MODEL" in error, command
    assert contents(package_model) == before
    assert sorted(package_model.parent.iterdir()) == beside


def test_no_function_changes_it(package_model, datasets, preset, chest_pack):
    for change in (
        lambda: cs.learn(datasets["chest"], "starter", preset=preset, name="more"),
        lambda: Model.open("starter").add(chest_pack.renamed("more")),
        lambda: Model.open("starter").add_file("x.txt", b"x"),
        lambda: Model.open("starter").remove("chest"),
        lambda: quantise("starter", []),
        lambda: learn_anomaly(datasets["chest"], package_model, preset, "head"),
        lambda: shrink_pack("chest", datasets["chest"], package_model, preset),
    ):
        with pytest.raises(ModelError, match="read-only"):
            change()


def test_a_copy_has_every_byte_and_takes_packs(package_model, chest_pack, contents, tmp_path, capsys):
    assert main(["starter", "-o", "mymodel"]) == 0
    copied = tmp_path / "work" / "mymodel"
    assert contents(copied) == contents(package_model)
    assert "totalseg" in capsys.readouterr().out
    assert "more" in Model.open("mymodel").add(chest_pack.renamed("more")).pack_names
    assert main(["starter", "-o", "mymodel"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_its_description_has_organs_and_size(package_model, capsys):
    assert main(["starter"]) == 0
    text = capsys.readouterr().out
    assert str(package_model) in text
    assert "brain" in text
    assert "MB" in text


@pytest.mark.skipif(not starter.FOLDER.exists(), reason="this checkout has no starter model")
def test_the_model_in_the_package_is_small_and_verified():
    model = Model.open("starter")
    assert sum(path.stat().st_size for path in model.folder.rglob("*")) <= 12e6
    assert cs.verify("starter").good
    assert {"brainstem", "spinal_cord", "mandible", "larynx", "esophagus"} <= set(model.organs)
    assert all(model.pack(name).licence for name in model.pack_names)

"""`conseg` as a whole: help without waiting, and one clear error for what a user can fix."""

import argparse
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from continual_segment.cli import main as cli
from continual_segment.cli.main import COMMANDS, main, make_parser
from continual_segment.config import PRESETS
from continual_segment.segmentation.backends import BACKEND_NAMES
from continual_segment.segmentation.merge import RULES

HELP = """
import sys
from continual_segment.cli.main import main
for words in (a.split() for a in sys.argv[1:]):
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0
heavy = {"torch", "numpy", "scipy", "matplotlib", "nibabel", "blosc2"} & sys.modules.keys()
assert not heavy, heavy
"""

SEGMENT = """
import sys
from continual_segment.cli.main import main
code = main(sys.argv[1:])
other = {"matplotlib", "highdicom", "pandas", "scipy.stats", "scipy.optimize", "scipy.spatial"}
heavy = other & sys.modules.keys()
assert not heavy, heavy
assert "torch" in sys.modules  # it has segmented
sys.exit(code)
"""
MODEL = Path(__file__).parents[1] / "model" / "format_1" / "model"


def commands():
    """Every command, and every action of a command that has some."""

    def below(parser, words):
        yield " ".join(words)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    yield from below(inner, [*words, name])

    return list(below(make_parser(), []))


def test_help_of_every_command_comes_without_importing_torch(python):
    names = commands()
    assert len(names) > len(COMMANDS) + 4  # conseg itself, the commands, the actions of pack
    process = python("-c", HELP, *names)
    shown, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    assert shown.count("usage: conseg") == len(names)


def test_segmenting_from_nifti_to_nifti_imports_nothing_that_other_outputs_need(python, tmp_path):
    voxels = np.full((12, 12, 12), -1000, np.int16)
    voxels[2:-2, 2:-2] = 40
    nib.save(nib.Nifti1Image(voxels, np.diag([16.0, 16.0, 16.0, 1.0])), tmp_path / "ct.nii.gz")
    out = tmp_path / "labels.nii.gz"
    process = python("-c", SEGMENT, "segment", tmp_path / "ct.nii.gz", "-m", MODEL, "-o", out, "-q")
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    assert out.exists()


@pytest.mark.parametrize(
    ("command", "names"),
    [("learn", PRESETS), ("benchmark", PRESETS), ("segment", RULES), ("segment", BACKEND_NAMES)],
)
def test_help_names_every_preset_merge_rule_and_backend(command, names, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    assert [name for name in names if name not in words] == []


def test_the_version_is_the_packages(capsys):
    from continual_segment import __version__

    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"conseg {__version__}\n"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("verify {gone}", "{gone} does not exist"),
        ("pack list -m {gone}", "{gone} does not exist"),
        ("pack remove x -m {gone}", "{gone} does not exist"),
        ("pack info x -m {gone}", "{gone} does not exist"),
        ("pack info {gone}", "{gone}: no such pack file"),
        ("pack add {gone} -m {model}", "{gone}: no such pack file"),
        ("pack remove liver -m {model}", "has no pack 'liver'. Its packs: chest, totalseg."),
        ("pack export liver -m {model} -o {gone}", "has no pack 'liver'"),
        ("segment {scan} -m {gone} -o {out}", "{gone} does not exist"),
        ("segment {gone} -m {model} -o {out}", "{gone}: no such file or folder"),
        ("segment {scan} -m {model} -o {out} --organs unicorn", "does not know unicorn"),
        ("segment {scan} -m {model} -o {out} --organs ,", "No organ was requested"),
        ("segment {scan} -m {model} -o {out} --overlap 1", "overlap is a share"),
        ("segment {scan} -m {model} -o {out} --merge dice", "merge is one of probability, ensemble"),
        ("segment {scan} -m {model} -o {out} --device abacus", "'abacus' cannot be computed on here"),
        ("learn {gone} -m {model}", "{gone}: there is no such folder"),
        ("learn {prepared} -m {model} --preset huge", "'huge' is neither a preset"),
        ("learn {prepared} -m {model} --preset lapto", "Did you mean laptop?"),
        (
            "segment {scan} -m {model} -o {out} --packs ches",
            "Did you mean chest? Its packs: chest, ",
        ),
        ("segment {scan} -m {model} -o {out} --packs ,", "No pack was requested"),
        ("learn {prepared} -m {model} --preset tiny --name chest", "has a pack 'chest' already"),
        ("learn {prepared} -m {model} --preset tiny --seed -1", "at least 0"),
        ("learn {prepared} -m {model} --preset tiny --device abacus", "'abacus' cannot be computed on here"),
        ("prepare {gone} --preset tiny", "{gone}"),
        ("prepare {gone} --model {gone}", "{gone} does not exist"),
        ("evaluate {gone} {gone}", "{gone}"),
    ],
)
def test_wrong_input_gets_one_sentence_and_exit_code_2(
    command, sentence, capsys, tmp_path, shared_model_folder, datasets, scan_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    places = {
        "gone": tmp_path / "gone",
        "out": tmp_path / "out",
        "model": shared_model_folder,
        "prepared": datasets["chest"].folder,
        "scan": scan_path,
    }
    assert main([word.format(**places) for word in command.split()]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith(f"conseg {command.split()[0]}: ")
    assert sentence.format(**places) in shown.err
    assert "Traceback" not in shown.err
    assert not (tmp_path / "gone").exists()
    assert not (tmp_path / "out").exists()


def test_an_error_of_the_system_gets_a_sentence_too(capsys, tmp_path, shared_model_folder):
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "chest.pack"
    assert main(["pack", "export", "chest", "-m", str(shared_model_folder), "-o", str(target)]) == 2
    shown = capsys.readouterr().err
    assert str(tmp_path / "file") in shown
    assert "Traceback" not in shown


def test_debug_shows_where_it_happened(tmp_path):
    from continual_segment.errors import ModelError

    with pytest.raises(ModelError):
        main(["--debug", "verify", str(tmp_path / "gone")])


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch, tmp_path):
    from continual_segment import model

    def broken(folder):
        raise ZeroDivisionError

    monkeypatch.setattr(model, "verify", broken)
    with pytest.raises(ZeroDivisionError):
        main(["verify", str(tmp_path)])


def test_ctrl_c_has_the_exit_code_shells_expect(monkeypatch, tmp_path, capsys):
    from continual_segment import model

    def stopped(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "verify", stopped)
    assert main(["verify", str(tmp_path)]) == 130
    assert "conseg verify: stopped" in capsys.readouterr().err


def test_verify_exits_with_1_and_names_the_pack_that_changed(model_folder, capsys):
    assert main(["verify", str(model_folder)]) == 0
    path = model_folder / "packs" / "chest.pack"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    assert main(["verify", str(model_folder)]) == 1
    assert "FAIL chest: " in capsys.readouterr().out


def test_no_command_is_given(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("learn nowhere -m model --preset tiny", 1),
        ("segment nowhere -m model -o out", 1),
        ("bodyparts nowhere -m model", 1),
        ("benchmark --preset tiny --datasets nowhere nowhere2 --out out", 1),
        ("verify model", 0),
    ],
)
def test_commands_that_run_networks_start_again_with_malloc_settings(words, expected, monkeypatch, tmp_path):
    started = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["conseg", *words.split()])
    monkeypatch.setattr(cli, "start_again_with_malloc_settings", lambda: started.append(words))
    assert main() == 2
    assert len(started) == expected


def test_errors_show_no_control_characters(capsys):
    cli.show_error("first \x1b]0;pwned\x07\nsecond \x1b[2J")
    assert capsys.readouterr().err == "first \ufffd]0;pwned\ufffd\nsecond \ufffd[2J\n"

"""Options mean what they spell: nothing is abbreviated, joined or guessed; errors make suggestions."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_segment.cli.main import main, make_parser

SEGMENT = "segment scan -m model -o out"


def parsed(words):
    return make_parser().parse_args(words.split())


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("-ml", "ml", True),
        ("-s", "statistics", True),
        ("-p", "preview", True),
        ("-f", "fast", True),
        ("-q", "quiet", True),
        ("-d gpu:1", "device", "gpu:1"),
        ("-rs liver spleen", "roi_subset", ["liver", "spleen"]),
        ("-ot organs", "output_type", "organs"),
        ("--packs a,b", "packs", "a,b"),
        ("--part 2/8", "shard", "2/8"),
        ("--shard 2/8", "shard", "2/8"),
        ("--again", "overwrite", True),
        ("--everywhere", "ignore_coverage", True),
    ],
)
def test_short_options_and_old_spellings_are_known(words, name, value):
    for command in (f"{SEGMENT} {words}", f"segment scan {words} -m model -o out"):
        args = parsed(command)
        assert getattr(args, name) == value
        assert args.model == [Path("model")]  # `-ml` is not `-m l`


def test_what_old_spellings_set_is_off_by_default():
    args = parsed(SEGMENT)
    assert (args.shard, args.overwrite, args.ignore_coverage) == ("1/1", False, False)


def test_help_shows_new_spellings_alone(capsys):
    with pytest.raises(SystemExit):
        main(["segment", "--help"])
    shown = capsys.readouterr().out
    for new, old in (
        ("--shard", "--part"),
        ("--overwrite", "--again"),
        ("--ignore-coverage", "--everywhere"),
    ):
        assert new in shown
        assert old not in shown.replace("--body-parts", "")


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (f"{SEGMENT} --stat", "--statistics"),
        (f"{SEGMENT} --organ=left kidney", "--organs"),
        (f"{SEGMENT} -ff", "-f"),  # not -f twice
        (f"{SEGMENT} -sii", "-s"),  # not -s -i i
        ("segment scan -mmodel -o out", "-m model"),
        ("segment scan -m model -oout", "-o out"),
        (f"{SEGMENT} -xyz", ""),
        ("learn prepared -m model --iteration 3", "--iterations"),
        ("pack list -mmodel", "-m model"),
        ("segmnet scan", "segment"),
        ("pack lst -m model", "list"),
        ("phantom out --dataset totalsg", "totalseg"),
        ("unicorn", "demo, starter, phantom"),
    ],
)
def test_what_is_not_known_is_one_line_with_a_suggestion(words, suggestion, capsys):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("conseg")
    assert "unknown" in line
    assert suggestion in line
    assert line.endswith("--help`.")


def test_a_hidden_spelling_is_not_suggested(capsys):
    with pytest.raises(SystemExit):
        main(f"{SEGMENT} --everywher".split())
    assert "--everywhere" not in capsys.readouterr().err


def test_negative_numbers_are_values(capsys):
    assert parsed("learn prepared -m model --seed -1").seed == -1
    assert parsed("phantom out --dataset chest --spacing -1.5 2 3").spacing == [-1.5, 2.0, 3.0]


@pytest.mark.parametrize("budget", ["abc", "1,2,3", "0.5,", ""])
def test_a_budget_that_is_no_number_is_answered_with_an_example(budget, capsys):
    with pytest.raises(SystemExit):
        main(["learn", "prepared", "-m", "model", "--budget", budget])
    assert "0.97,0.75" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "prepare raw --workers",
        "evaluate predictions truth --workers",
        "phantom out --dataset chest --workers",
        "learn prepared -m model --budget-packs",
        "segment scan -m model -o out --engine dask://here:1 --attempts",
        "benchmark -o out --held-out",
        "benchmark -o out --seeds",
        "benchmark -o out --cases",
        "benchmark -o out --iterations",
        "benchmark -o out --updates",
    ],
)
def test_counts_are_whole_numbers_from_1_on(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # for what a command would write
    for count in ("0", "-1", "1.5", "many", "", "9" * 5000, "\u0663"):
        with pytest.raises(SystemExit) as end:
            main([*words.split(), count])
        assert end.value.code == 2
        assert "a whole number from 1 on was expected" in capsys.readouterr().err
    assert 12 in vars(parsed(f"{words} 12")).values()


def help_of(words, monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "command", ["starter", "phantom", "import", "learn", "segment", "pack shrink", "view"]
)
def test_every_example_in_a_help_text_is_a_line_of_its_own(command, monkeypatch, capsys):
    lines = help_of(command, monkeypatch, capsys, columns=60)
    assert f"  conseg {command} " in "\n".join(line[: len(command) + 10] for line in lines)
    assert not any("conseg" in line.partition("conseg ")[2] for line in lines if line.startswith("  conseg "))


@pytest.mark.parametrize("columns", [60, 100])
def test_the_text_of_a_help_is_wrapped_to_the_terminal_and_its_lists_are_kept(columns, monkeypatch, capsys):
    lines = help_of("prepare", monkeypatch, capsys, columns)
    assert "  TotalSegmentator  <case>/ct.nii.gz, <case>/segmentations/<organ>.nii.gz" in lines
    text = [line for line in lines if line and not line.startswith(" ")]
    assert columns - 20 < max(map(len, text)) <= columns


def test_every_command_is_listed_on_a_line_with_its_explanation(monkeypatch, capsys):
    lines = help_of("", monkeypatch, capsys, columns=100)
    assert any(line.startswith("    bodyparts  find ") for line in lines)


def test_every_command_and_action_is_described():
    def parsers(parser):
        yield parser
        for action in parser._actions:
            for each in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
                yield from parsers(each)

    assert [each.prog for each in parsers(make_parser()) if not each.description] == []

"""Kinds of bad input by name, and what several of them are made with."""

from __future__ import annotations

from made_scans import write_nifti

BAD = {}
"""Name -> what makes it in a folder and gives its path, and what is said of it."""


def bad(name, sentence):
    """Name a kind of bad input; the function makes it in a folder and gives its path."""

    def keep(make):
        assert name not in BAD
        BAD[name] = make, sentence

    return keep


def patched(name, at, data, source=lambda folder: write_nifti(folder / "whole.nii")):
    """A sound file with some bytes overwritten."""

    def make(folder):
        content = bytearray(source(folder).read_bytes())
        content[at : at + len(data)] = data
        (folder / name).write_bytes(content)
        return folder / name

    return make


def cut(source, name, share=0.5):
    def make(folder):
        content = source(folder).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])
        return folder / name

    return make


def written(name, content):
    def make(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return make


def make_folder(folder, name, files=()):
    (folder / name).mkdir()
    for file, content in files:
        (folder / name / file).write_bytes(content)
    return folder / name

"""The starter: the model in the package, opened by its name, never changed.

The text `starter` names it wherever a model is read. Anything else, a Path included, is a folder. Where the
text could mean a model folder ./starter as well, it is refused: a user would not notice that labels come from
another model.

In:  what a user gave as a model
Out: its folder
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from continual_segment.errors import ModelError

NAME = "starter"
FOLDER = Path(str(files("continual_segment"))) / NAME
DESCRIPTION = "model.json"
COPY = "conseg starter -o MODEL"


def model_folder(model: str | Path, home: Path | None = None) -> Path:
    """The folder that a text or path means; `home` is where relative ones start."""
    if model != NAME:
        return Path(model)
    own = (home or Path.cwd()) / NAME
    if (own / DESCRIPTION).is_file():
        raise ModelError(
            f"'{NAME}' names the model in the package, and {own} is a model folder, too. For the folder give "
            f"{own}; for the model in the package give {FOLDER}, or rename the folder."
        )
    return installed()


def installed() -> Path:
    """The folder of the model in the package; ModelError where this installation has none."""
    if not (FOLDER / DESCRIPTION).is_file():
        raise ModelError(
            f"{FOLDER / DESCRIPTION} is missing: this installation has no starter model. Install a release, "
            "or give the folder of another model."
        )
    return FOLDER


def is_starter(folder: Path) -> bool:
    """Whether a folder is that of the package, however it is spelled."""
    return folder.resolve() == FOLDER.resolve()


def refuse_starter(folder: Path) -> None:
    """Raise where a command would change the model in the package, or write beside it."""
    if is_starter(folder):
        raise ModelError(
            f"The model '{NAME}' is part of the package and read-only. Copy it with `{COPY}` and run the "
            "command with -m MODEL."
        )

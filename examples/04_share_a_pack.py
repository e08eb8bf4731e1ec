"""Share a pack: export it here, install it in another model with the same encoder. Needs 02_learn.py.

What travels is one file. It holds no patient data, and the model it is added to becomes the same, to the
byte, as the one it came from.
"""

import shutil
from pathlib import Path

from continual_segment import Model, OrganPack, verify

WORK = Path("examples_out")


def main() -> None:
    ours = Model.open(WORK / "model")
    ours.export("headneck", WORK / "headneck.pack")

    # A colleague has the same encoder, but not this pack.
    shutil.rmtree(WORK / "colleague", ignore_errors=True)
    shutil.copytree(ours.folder, WORK / "colleague")
    theirs = Model.open(WORK / "colleague").remove("headneck")
    print(f"The colleague's model has {', '.join(theirs.pack_names)}.")

    theirs = theirs.add(OrganPack.read(WORK / "headneck.pack"))
    print(f"Now it has {', '.join(theirs.pack_names)}.")
    print(verify(theirs.folder))
    assert theirs.files == ours.files  # sha256 of every file


if __name__ == "__main__":
    main()

"""Learn two datasets, one after the other. Needs what 01_prepare.py wrote.

The first step trains the encoder and makes the model. The second reads the frozen encoder and adds a pack;
it never asks for the first dataset.
"""

from pathlib import Path

from continual_segment import Model, learn, verify

WORK = Path("examples_out")
MODEL = WORK / "model"


def main() -> None:
    for name in ("totalseg", "headneck"):
        if MODEL.exists() and name in Model.open(MODEL).pack_names:
            continue  # nothing learned is ever overwritten
        pack = learn(WORK / "prepared" / name, MODEL, preset="tiny", name=name)
        print(f"Learned {len(pack.organs)} organs; fingerprint {pack.fingerprint[:12]}.")
    print(verify(MODEL))


if __name__ == "__main__":
    main()

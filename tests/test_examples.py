"""The examples run, in order, in an empty folder, as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def test_the_examples_run_in_order(tmp_path):
    said = {script.name: run(script, tmp_path) for script in EXAMPLES}
    assert "nnunet" in said["01_prepare.py"]
    assert "ok   headneck" in said["02_learn.py"]
    assert "DSC" in said["03_segment.py"]
    assert "parotid_left:" in said["03_segment.py"]
    assert "Now it has headneck, totalseg." in said["04_share_a_pack.py"]


def run(script: Path, folder: Path) -> str:
    """What the script prints; its errors where it fails."""
    # one thread, since other tests run beside it; an absolute path, since it runs in another folder
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

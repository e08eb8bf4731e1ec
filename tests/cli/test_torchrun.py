"""`torchrun ... conseg learn`: one model, one set of messages, and an end for all when one process dies."""

import os
import subprocess
import sys
from pathlib import Path

from continual_segment.model import Model
from continual_segment.training.history import read_history

SOURCE = Path(__file__).parents[2] / "src"
LEARN = """
import os, signal, sys
from continual_segment.cli.main import main
from continual_segment.training.update import Update
original = Update.__call__

def call(self, images, labels, iteration):
    if iteration == int(os.environ["DIES_AT"]) and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, images, labels, iteration)

Update.__call__ = call
sys.exit(main(sys.argv[1:]))
"""


def torchrun(script, *arguments, dies_at=-1):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    known = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "DIES_AT": str(dies_at)}
    return subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env=os.environ | known,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_process_that_dies_ends_the_run_and_the_same_command_resumes_it(datasets, base_folder, tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(LEARN)
    before = (base_folder / "model.json").read_bytes()
    command = ("learn", datasets["chest"].folder, "-m", base_folder, "--name", "chest", "--preset", "tiny")
    died = torchrun(script, *command, dies_at=5)
    assert died.returncode != 0
    assert died.stderr.count("has lost the connection") == 1
    assert "SIGKILL" in died.stderr
    assert (base_folder / "model.json").read_bytes() == before
    resumed = torchrun(script, *command)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.count("resumes after iteration 4") == 1
    assert resumed.stdout.count("now has pack 'chest'") == 1
    card = Model.open(base_folder).pack("chest").card
    assert card["train"]["processes"] == 2
    assert read_history(base_folder.with_name("base.runs") / "chest")[-1]["iteration"] == 8


def test_a_command_for_one_process_is_refused_once(tmp_path, model_folder):
    script = tmp_path / "verify.py"
    script.write_text("import sys\nfrom continual_segment.cli.main import main\nsys.exit(main(sys.argv[1:]))")
    refused = torchrun(script, "verify", model_folder)
    assert refused.returncode != 0
    assert refused.stderr.count("without torchrun") == 1

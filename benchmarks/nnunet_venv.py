"""A virtual environment with stock nnU-Net v2, made on first use; and running things in it.

nnU-Net's dependencies ask for torchvision through timm, which only two of its other networks need. Beside a
CPU build of PyTorch torchvision often does not import, so timm is installed without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BARE = ("nnunetv2>=2.6", "dynamic-network-architectures>=0.4.4,<0.5", "timm<1.0.23")
NEEDED = (
    *("acvl-utils>=0.2.6,<0.3", "batchgenerators>=0.25.1", "batchgeneratorsv2>=0.3.2", "blosc2>=3.3.2"),
    *("einops", "graphviz", "huggingface_hub", "imagecodecs", "matplotlib", "nibabel", "numpy", "pandas"),
    *("pyyaml", "requests", "safetensors", "scikit-image", "scikit-learn", "scipy", "seaborn", "SimpleITK"),
    *("tifffile", "tqdm", "yacs"),
)
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""What `continual_segment.malloc.keep_freed_memory` sets, as glibc reads it from outside."""


def nnunet_python(folder: Path) -> Path:
    """The interpreter of the environment, which is made if need be."""
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    import torch

    print(f"Making {folder} with nnU-Net v2; once, minutes.", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={torch.__version__.split('+')[0]}", *NEEDED], check=True)
    subprocess.run([*pip, "--no-deps", *BARE], check=True)
    for primus in folder.glob("lib/python*/site-packages/nnunetv2/training/nnUNetTrainer/primus"):
        shutil.rmtree(primus)  # nnU-Net imports all trainers to find one, and these import torchvision
    (folder / "ready").touch()
    return python


def run(command: list[Any], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON a process prints last, its seconds on the wall and the most memory it held, in bytes."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate()
    seconds = time.perf_counter() - begun
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{out[-2000:]}\n{err[-4000:]}")
    return {"wall": seconds, **json.loads(out.strip().splitlines()[-1])}

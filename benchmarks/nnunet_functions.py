"""Stock nnU-Net's own functions on given arrays, in its environment; nnunet_parity.py and others start it.

python nnunet_functions.py FOLDER

FOLDER/jobs.json lists jobs: name, function, arguments. FOLDER/NAME.npy is the array a job works on, if any;
what it returns is written to FOLDER/NAME.npz, with the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
    os.environ.setdefault(name, "/tmp")

Arrays = dict[str, Any]


def read(_: None, reader: str, file: str, transpose_forward: list[int]) -> Arrays:
    from nnunetv2.imageio.nibabel_reader_writer import NibabelIO, NibabelIOWithReorient
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO, SimpleITKIOWithReorient

    readers = [NibabelIO, NibabelIOWithReorient, SimpleITKIO, SimpleITKIOWithReorient]
    (chosen,) = (each for each in readers if each.__name__ == reader)
    voxels, properties = chosen().read_images([file])
    spacing = [properties["spacing"][axis] for axis in transpose_forward]
    return {"voxels": voxels[0].transpose(transpose_forward), "spacing": spacing}


def crop(voxels: np.ndarray) -> Arrays:
    from nnunetv2.preprocessing.cropping.cropping import crop_to_nonzero

    data, mask, box = crop_to_nonzero(voxels[None])
    return {"crop": data[0], "mask": mask[0] >= 0, "box": box}


def shape(_: None, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    from nnunetv2.preprocessing.resampling.default_resampling import (
        compute_new_shape,
        determine_do_sep_z_and_axis,
    )

    separate, axis = determine_do_sep_z_and_axis(None, spacing, new_spacing)
    return {"shape": compute_new_shape(shape, spacing, new_spacing), "axis": axis if separate else -1}


def resample(voxels: np.ndarray, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    return {"voxels": resampled(voxels[None], shape, spacing, new_spacing, order=3)[0]}


def logits(voxels: np.ndarray, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    return {"voxels": resampled(voxels, shape, spacing, new_spacing, order=1)}


def resampled(voxels: np.ndarray, *geometry: Any, order: int) -> np.ndarray:
    from nnunetv2.preprocessing.resampling.default_resampling import resample_data_or_seg_to_shape

    found: np.ndarray = resample_data_or_seg_to_shape(
        voxels, *geometry, is_seg=False, order=order, order_z=0, force_separate_z=None
    )
    return found


def pad(voxels: np.ndarray, window: list[int]) -> Arrays:
    import torch
    from acvl_utils.cropping_and_padding.padding import pad_nd_image

    padded, inner = pad_nd_image(torch.from_numpy(voxels), window, "constant", {"value": 0}, True, None)
    return {"voxels": padded.numpy(), "inner": [[part.start, part.stop] for part in inner]}


def windows(_: None, length: int, window: int, step: float) -> Arrays:
    from nnunetv2.inference.sliding_window_prediction import compute_steps_for_sliding_window

    return {"starts": compute_steps_for_sliding_window((length,), (window,), step)[0]}


def weights(_: None, window: list[int]) -> Arrays:
    import torch
    from nnunetv2.inference.sliding_window_prediction import compute_gaussian

    found = compute_gaussian(tuple(window), 1 / 8, value_scaling_factor=10, device=torch.device("cpu"))
    return {"weights": found.numpy()}


def preprocess(_: None, file: str, plans: dict[str, Any]) -> Arrays:
    """All steps from a file to the network's input."""
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    manager = PlansManager(plans)
    configuration = manager.get_configuration("3d_fullres")
    data, _seg, properties = DefaultPreprocessor(verbose=False).run_case(
        [file], None, manager, configuration, {"labels": {"background": 0}}
    )
    return {"voxels": data[0], "box": properties["bbox_used_for_cropping"]}


def predict(_: None, file: str, plans: dict[str, Any], network: str, classes: int, out: str) -> Arrays:
    """From a file to a label map, `out`, by a TorchScript network."""
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    manager = PlansManager(plans)
    loaded = torch.jit.load(network)
    labels = {"background": 0} | {f"organ {number}": number for number in range(1, classes)}
    predictor = nnUNetPredictor(use_mirroring=False, device=torch.device("cpu"), allow_tqdm=False)
    predictor.manual_initialization(
        loaded,
        manager,
        manager.get_configuration("3d_fullres"),
        [loaded.state_dict()],
        {"labels": labels, "file_ending": ".nii.gz"},
        "nnUNetTrainer",
        None,
    )
    predictor.predict_from_files_sequential([[file]], [out.removesuffix(".nii.gz")])
    return {}


FUNCTIONS = {
    each.__name__: each
    for each in (read, crop, shape, resample, logits, pad, windows, weights, preprocess, predict)
}


def main(folder: Path) -> None:
    import nnunetv2.inference.predict_from_raw_data  # noqa: F401  # imports count for no function's seconds

    for job in json.loads((folder / "jobs.json").read_text()):
        file = folder / f"{job['name']}.npy"
        voxels = np.load(file) if file.exists() else None
        begun = time.perf_counter()
        found = FUNCTIONS[job["function"]](voxels, **job["arguments"])
        seconds = time.perf_counter() - begun
        np.savez(
            folder / f"{job['name']}.npz",
            seconds=seconds,
            **{key: np.asarray(value) for key, value in found.items()},
        )
    print("{}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

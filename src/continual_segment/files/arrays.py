"""Arrays and images of other libraries in memory: nibabel and SimpleITK."""

from __future__ import annotations

from typing import Any, cast

import nibabel as nib
import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files.grids import LPS_TO_RAS, check_affine, check_shape, scan_of
from continual_segment.volume import SitkImage, Volume

IN_MEMORY = "The array"
"""What error messages name in place of a file."""


def volume_from_array(voxels: np.ndarray, affine: np.ndarray) -> Volume:
    """Hounsfield units indexed (i, j, k) with their NIfTI affine; ScanError where they are no volume."""
    voxels, affine = np.asanyarray(voxels), np.asarray(affine, dtype=np.float64)
    check_shape(IN_MEMORY, voxels.shape)
    if affine.shape != (4, 4):
        raise ScanError(f"{IN_MEMORY}: the affine has the shape {affine.shape}; 4 x 4 was expected.")
    if voxels.dtype.kind not in "iufb":
        raise ScanError(f"{IN_MEMORY}: voxels are {voxels.dtype}; numbers in Hounsfield units were expected.")
    check_affine(IN_MEMORY, affine)
    return scan_of(IN_MEMORY, voxels.reshape(voxels.shape[:3]), affine)


def nibabel_image(voxels: np.ndarray, affine: np.ndarray) -> nib.Nifti1Image:
    """Voxels (i, j, k) as a NIfTI image; NIfTI has no bool."""
    return nib.Nifti1Image(voxels.astype(np.uint8) if voxels.dtype == bool else voxels, affine)


def array_of_sitk(image: SitkImage) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (i, j, k) and NIfTI affine of a SimpleITK image, whose millimetres run to the left and back."""
    import SimpleITK

    voxels = SimpleITK.GetArrayFromImage(cast(SimpleITK.Image, image))  # a view does not keep it alive
    if voxels.ndim != 3:
        raise ScanError(f"{IN_MEMORY}: the SimpleITK image has {voxels.ndim} axes; 3 were expected.")
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    return voxels.transpose(2, 1, 0), LPS_TO_RAS @ affine


def sitk_image(voxels: np.ndarray, affine: np.ndarray) -> Any:
    """A SimpleITK image of voxels (i, j, k)."""
    import SimpleITK

    lps = LPS_TO_RAS @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    numbers = voxels.astype(np.uint8) if voxels.dtype == bool else voxels
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(numbers.transpose(2, 1, 0)))
    image.SetSpacing(spacing.tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    return image

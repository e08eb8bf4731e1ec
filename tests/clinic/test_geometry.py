"""Every kind of input, every kind of output: organs lie where they are, by readers that are not ours."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from made_scans import CENTRES_MM, GEOMETRIES, LPS, WRITERS, ball_labels, balls_on, centroid

from continual_segment.clinic.formats import FORMATS, Labelled, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.files import read_source
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
CASES = [(kind, geometry) for kind in WRITERS for geometry in GEOMETRIES]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Writes a source in every format and reads it back; sources that say the same are written once."""
    known = {}

    def centroids(source):
        key = said_by(source)
        if key not in known:
            folder = tmp_path_factory.mktemp("results")
            labels = ball_labels(source.on_grid.voxels, source.grid, IDS)
            on_slices = source.slices and balls_on(source.slices, IDS)
            labelled = Labelled(Job("case", folder, folder, alone=False), source, labels, False, on_slices)
            for name in FORMATS:
                write_format(name, folder, labelled)
            known[key] = {name: READERS[name](folder) for name in FORMATS}
        return known[key]

    return centroids


def said_by(source):
    """All of a source that its results depend on; places to a thousandth of a millimetre."""
    grids = [
        (grid.shape, grid.affine.round(3).tobytes(), grid.orientation)
        for grid in (source.volume.grid, source.grid)
    ]
    frames = source.series.frames if source.series else ()
    places = [(frame.header.SOPInstanceUID, frame.index, frame.position_mm.tobytes()) for frame in frames]
    return source.volume.voxels.tobytes(), str(grids), str(places)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def found(request, results, tmp_path_factory):
    """Centroids by format and organ, from a scan of one kind and geometry."""
    kind, geometry = request.param
    scan = WRITERS[kind](tmp_path_factory.mktemp("scan"), GEOMETRIES[geometry])
    return results(read_source(scan)), GEOMETRIES[geometry]


def nifti_centroids(folder):
    image = nib.load(folder / "case.nii.gz")
    voxels = np.asarray(image.dataobj)
    return {name: centroid((voxels == label).T, LPS @ image.affine) for name, label in IDS.items()}


def organ_centroids(folder):
    images = {name: nib.load(folder / "case" / f"{name}.nii.gz") for name in IDS}
    return {n: centroid(np.asarray(i.dataobj).T > 0, LPS @ i.affine) for n, i in images.items()}


def nrrd_centroids(folder):
    image = sitk.ReadImage(str(folder / "case.seg.nrrd"))
    fields = {key: image.GetMetaData(key) for key in image.GetMetaDataKeys()}
    names = {
        v: int(fields[k.replace("_Name", "_LabelValue")]) for k, v in fields.items() if k.endswith("_Name")
    }
    voxels = sitk.GetArrayFromImage(image)
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    return {name: centroid(voxels == label, affine) for name, label in names.items()}


def seg_centroids(folder, file="case.seg.dcm"):
    data = pydicom.dcmread(folder / file)
    names = {segment.SegmentNumber: segment.SegmentLabel for segment in data.SegmentSequence}
    names.pop(0, None)  # a label map names its background, too
    shared = data.SharedFunctionalGroupsSequence[0]
    spacing = [float(part) for part in shared.PixelMeasuresSequence[0].PixelSpacing]
    points = {name: [] for name in names.values()}
    for frame, groups in zip(data.pixel_array, data.PerFrameFunctionalGroupsSequence, strict=True):
        both = {**{e.keyword: e for e in shared}, **{e.keyword: e for e in groups}}
        orientation = np.array(both["PlaneOrientationSequence"].value[0].ImageOrientationPatient, float)
        position = np.array(both["PlanePositionSequence"].value[0].ImagePositionPatient, float)
        chosen = (
            {names[both["SegmentIdentificationSequence"].value[0].ReferencedSegmentNumber]: frame > 0}
            if "SegmentIdentificationSequence" in both
            else {name: frame == number for number, name in names.items()}
        )
        for name, mask in chosen.items():
            rows, columns = np.nonzero(mask)
            across = columns[:, None] * spacing[1] * orientation[:3]
            points[name].append(position + across + rows[:, None] * spacing[0] * orientation[3:])
    return {name: np.concatenate(places).mean(axis=0) for name, places in points.items()}


def rtstruct_centroids(folder):
    """By the areas that the contours enclose; a contour of no area would weigh nothing and is a mistake."""
    data = pydicom.dcmread(folder / "case.rtstruct.dcm")
    names = {roi.ROINumber: roi.ROIName for roi in data.StructureSetROISequence}
    found = {}
    for roi in data.ROIContourSequence:
        weights, middles = [], []
        for contour in roi.ContourSequence:
            loop = np.array(contour.ContourData, float).reshape(-1, 3)
            assert len(loop) == contour.NumberOfContourPoints >= 3
            corners = loop - loop[0]
            crosses = np.cross(corners, np.roll(corners, -1, axis=0))
            normal = crosses.sum(axis=0) / np.linalg.norm(crosses.sum(axis=0))
            areas = crosses @ normal / 2
            assert areas.sum() > 0.5
            thirds = (corners + np.roll(corners, -1, axis=0)) / 3
            weights.append(areas.sum())
            middles.append(loop[0] + (areas[:, None] * thirds).sum(axis=0) / areas.sum())
        found[names[roi.ReferencedROINumber]] = np.average(middles, axis=0, weights=weights)
    return found


READERS = {
    "nifti": nifti_centroids,
    "organs": organ_centroids,
    "seg.nrrd": nrrd_centroids,
    "dicom_seg": seg_centroids,
    "dicom_labelmap": lambda folder: seg_centroids(folder, "case.labelmap.dcm"),
    "rtstruct": rtstruct_centroids,
}


@pytest.mark.parametrize("format_", FORMATS)
def test_organs_lie_within_a_tenth_of_a_voxel_of_the_truth(found, format_):
    centroids, made = found
    assert set(centroids[format_]) == set(IDS)
    for name, truth in CENTRES_MM.items():
        away = np.linalg.inv(made.affine[:3, :3]) @ (centroids[format_][name] - truth)
        assert np.abs(away).max() < 0.1, (name, away)

"""What each format says of organs: names, codes, colours, parts within wholes, sound contours."""

from __future__ import annotations

import nibabel as nib
import nrrd
import numpy as np
import pydicom
import pytest
from made_scans import AXIAL, LPS, write_series
from matplotlib.path import Path as Outline

from continual_segment.clinic.formats import FORMATS, Labelled, canonical_format, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.errors import ConfigError
from continual_segment.files import Source, read_labels, read_source
from continual_segment.files.dicom.rtstruct import outlines
from continual_segment.files.terms import terms_of
from continual_segment.organs import find_organ, known_organs
from continual_segment.volume import Grid, LabelMap, Volume

NAMES = ("aorta", "aorta_arch", "kidney_left", "flux_capacitor", "spleen")
AORTA, ARCH, KIDNEY, FLUX, SPLEEN = IDS = [find_organ(name).id for name in NAMES]


def labelled(tmp_path, voxels=None, nested=True):
    """A case with an arch drawn over its aorta, a kidney, an organ no table knows, and no spleen."""
    grid = Grid(AXIAL.shape, LPS @ np.diag([1.9, 2.1, 3.1, 1.0]) @ np.diag([-1.0, -1.0, 1, 1]))
    source = Source(Volume(AXIAL.voxels, grid), grid)
    if voxels is None:
        voxels = np.zeros(AXIAL.shape, np.uint16)
        voxels[4:20, 10:18, 10:18] = AORTA
        voxels[16:20, 10:18, 10:18] = ARCH
        voxels[5:9, 30:36, 12:20] = KIDNEY
        voxels[5:9, 30:36, 30:33] = FLUX
    labels = LabelMap(voxels, grid, dict(zip(IDS, NAMES, strict=True)))
    return Labelled(Job("case", tmp_path, tmp_path, alone=False), source, labels, nested)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    for name in FORMATS:
        write_format(name, folder, labelled(folder))
    return folder


def test_a_scan_without_dicom_gets_a_series_that_results_refer_to(folder):
    slices = [pydicom.dcmread(path) for path in sorted((folder / "case_ct").iterdir())]
    assert len(slices) == AXIAL.shape[0]
    segmentation = pydicom.dcmread(folder / "case.seg.dcm")
    named = {
        item.ReferencedSOPInstanceUID
        for item in segmentation.ReferencedSeriesSequence[0].ReferencedInstanceSequence
    }
    assert named <= {each.SOPInstanceUID for each in slices}
    assert segmentation.FrameOfReferenceUID == slices[0].FrameOfReferenceUID
    contours = pydicom.dcmread(folder / "case.rtstruct.dcm")
    assert contours.FrameOfReferenceUID == slices[0].FrameOfReferenceUID


def test_slices_that_cannot_be_referred_to_get_a_copy_that_can(tmp_path, caplog):
    write_series(tmp_path / "anonymous", AXIAL, SeriesInstanceUID="", FrameOfReferenceUID=None)
    source = read_source(tmp_path / "anonymous")
    labels = LabelMap((source.volume.voxels > 300).astype(np.uint8), source.volume.grid, {1: "liver"})
    case = Labelled(Job("case", tmp_path, tmp_path / "out"), source, labels, nested=False)
    for name in ("dicom_seg", "rtstruct"):
        write_format(name, tmp_path / "out", case)
    copies = {pydicom.dcmread(path).SOPInstanceUID for path in (tmp_path / "out" / "case_ct").iterdir()}
    contours = pydicom.dcmread(tmp_path / "out" / "case.rtstruct.dcm")
    study = contours.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0]
    images = study.RTReferencedSeriesSequence[0].ContourImageSequence
    assert {image.ReferencedSOPInstanceUID for image in images} == copies
    assert "no SeriesInstanceUID" in caplog.text


def test_dicom_segments_have_snomed_codes_sides_and_colours(folder):
    data = pydicom.dcmread(folder / "case.seg.dcm")
    segments = {segment.SegmentLabel: segment for segment in data.SegmentSequence}
    assert set(segments) == {"aorta", "aorta_arch", "kidney_left", "flux_capacitor"}
    kidney = segments["kidney_left"].SegmentedPropertyTypeCodeSequence[0]
    assert (kidney.CodeValue, kidney.CodingSchemeDesignator) == ("64033007", "SCT")
    assert kidney.SegmentedPropertyTypeModifierCodeSequence[0].CodeMeaning == "Left"
    flux = segments["flux_capacitor"].SegmentedPropertyTypeCodeSequence[0]
    assert flux.CodingSchemeDesignator == "99CONSEG"
    assert len({tuple(each.RecommendedDisplayCIELabValue) for each in segments.values()}) == 4
    assert segments["aorta"].SegmentDescription == f"organ id {AORTA}"


def test_a_whole_keeps_the_voxels_of_its_parts_where_the_format_can(folder):
    data = pydicom.dcmread(folder / "case.seg.dcm")
    voxels = dict.fromkeys(range(1, 5), 0)
    for frame, groups in zip(data.pixel_array, data.PerFrameFunctionalGroupsSequence, strict=True):
        voxels[groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber] += int((frame > 0).sum())
    names = {segment.SegmentLabel: segment.SegmentNumber for segment in data.SegmentSequence}
    assert voxels[names["aorta"]] == 16 * 64
    assert voxels[names["aorta_arch"]] == 4 * 64
    mask = nib.load(folder / "case" / "aorta.nii.gz")
    assert np.asarray(mask.dataobj).sum() == 16 * 64
    layers, header = nrrd.read(str(folder / "case.seg.nrrd"))
    assert layers.shape[0] == 2
    assert (layers[0] == AORTA).sum() == 16 * 64
    assert (layers[1] == ARCH).sum() == 4 * 64
    assert {header[f"Segment{i}_Name"]: header[f"Segment{i}_Layer"] for i in range(4)}["aorta_arch"] == "1"
    drawn = read_labels(folder / "case.nii.gz").voxels
    assert (drawn == AORTA).sum() == 12 * 64


def test_a_label_map_in_dicom_draws_parts_over_wholes(folder):
    data = pydicom.dcmread(folder / "case.labelmap.dcm")
    assert data.SegmentationType == "LABELMAP"
    names = {segment.SegmentLabel: segment.SegmentNumber for segment in data.SegmentSequence}
    assert (data.pixel_array == names["aorta"]).sum() == 12 * 64


def test_slicer_finds_names_colours_and_terminology(folder):
    header = nrrd.read_header(str(folder / "case.seg.nrrd"))
    index = next(i for i in range(4) if header[f"Segment{i}_Name"] == "kidney_left")
    assert "~SCT^64033007^Kidney~SCT^7771000^Left~" in header[f"Segment{index}_Tags"]
    assert header[f"Segment{index}_LabelValue"] == str(KIDNEY)
    assert len(header[f"Segment{index}_Color"].split()) == 3
    assert header["space"] == "left-posterior-superior"


def test_one_file_per_organ_has_empty_ones_too(folder):
    assert {path.name for path in (folder / "case").iterdir()} == {f"{name}.nii.gz" for name in NAMES}
    assert not np.asarray(nib.load(folder / "case" / "spleen.nii.gz").dataobj).any()


def test_a_nifti_map_names_every_organ(folder):
    assert read_labels(folder / "case.nii.gz").names == dict(zip(IDS, NAMES, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_filling_the_contours_gives_back_every_voxel(seed):
    """Of shapes with holes, islands in holes, single voxels and corners that touch."""
    generator = np.random.default_rng(seed)
    mask = generator.random((14, 17)) < generator.uniform(0.2, 0.8)
    points = np.argwhere(np.ones_like(mask))[:, ::-1] + (0.013, 0.017)  # not right on a channel to a hole
    filled = np.zeros(mask.shape, int)
    for loop in outlines(mask):
        assert len(loop) >= 3
        x, y = (loop - loop[0]).T
        assert np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) / 2 > 0.2  # encloses something
        filled += Outline([*loop, loop[0]], closed=True).contains_points(points).reshape(mask.shape)
    np.testing.assert_array_equal(filled, mask)


def test_contours_are_closed_planar_and_lie_on_slices_they_name(folder):
    data = pydicom.dcmread(folder / "case.rtstruct.dcm")
    slices = {each.SOPInstanceUID: each for each in map(pydicom.dcmread, (folder / "case_ct").iterdir())}
    assert [roi.ROIName for roi in data.StructureSetROISequence] == [
        "kidney_left",
        "aorta",
        "aorta_arch",
        "flux_capacitor",
    ]
    for roi in data.ROIContourSequence:
        for contour in roi.ContourSequence:
            height = slices[contour.ContourImageSequence[0].ReferencedSOPInstanceUID].ImagePositionPatient[2]
            np.testing.assert_allclose(np.array(contour.ContourData[2::3], float), float(height), atol=1e-3)


def test_nothing_found_makes_no_dicom_file_and_says_so(tmp_path, caplog):
    empty = labelled(tmp_path, np.zeros(AXIAL.shape, np.uint16))
    for name in ("dicom_seg", "dicom_labelmap", "rtstruct"):
        write_format(name, tmp_path, empty)
    assert [path.name for path in tmp_path.iterdir()] == ["case_ct"]
    assert caplog.text.count("no organ was found") == 3


def test_unknown_formats_are_refused_and_other_names_understood():
    assert canonical_format("dicom_rtstruct") == "rtstruct"
    with pytest.raises(ConfigError, match=r"'jpeg'.*nifti, organs, seg\.nrrd"):
        canonical_format("jpeg")


def test_every_organ_has_terms_that_fit_into_dicom():
    for organ in known_organs():
        terms = terms_of(organ.name)
        assert terms.kind.scheme == ("SCT" if organ.snomed else "99CONSEG")
        assert 0 < len(terms.kind.value) <= 16
        assert 0 < len(terms.kind.meaning) <= 64
        assert (terms.side is not None) == bool(organ.side)

"""DICOM in: everything lies where it is in the patient, or a sentence says why it cannot be known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from made_scans import (
    AIR,
    AXIAL,
    CENTRES_MM,
    GEOMETRIES,
    LEVEL,
    LPS,
    WRITERS,
    ball_labels,
    balls_on,
    centroid,
    header,
    is_sheared,
    read_header,
    save,
    tilted,
    write_by_itk,
    write_enhanced,
    write_nifti,
    write_series,
    write_zip,
)
from pydicom.uid import ComprehensiveSRStorage

from continual_segment.errors import ScanError
from continual_segment.files import read_scan, read_source
from continual_segment.files.dicom.planes import planes
from continual_segment.organs import find_organ

REAL = Path(__file__).parents[3] / "shared" / "data" / "dicom"
IDS = {name: find_organ(name).id for name in CENTRES_MM}
needs_real_data = pytest.mark.skipif(
    not REAL.is_dir(), reason=f"the real DICOM series are not on this machine ({REAL})"
)


def assert_balls_lie_where_they_are(source, tolerance_voxels=0.1):
    labels = ball_labels(source.volume.voxels, source.volume.grid, IDS)
    for name, truth in CENTRES_MM.items():
        affine = LPS @ source.volume.grid.affine
        away_mm = centroid(labels.voxels == IDS[name], affine) - truth
        assert np.abs(np.linalg.inv(affine[:3, :3]) @ away_mm).max() < tolerance_voxels, name


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_puts_organs_where_they_are_in_the_patient(kind, geometry, tmp_path):
    made = GEOMETRIES[geometry]
    source = read_source(WRITERS[kind](tmp_path, made))
    assert_balls_lie_where_they_are(source)
    axes = source.volume.grid.affine[:3, :3] / source.volume.grid.spacing_mm[::-1]
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-5)  # right angles, tilted or not
    assert bool(source.notes) == is_sheared(made)


@pytest.mark.parametrize("degrees", [18.0, -12.0, 2.0])
def test_a_tilt_is_taken_out_and_reported(degrees, tmp_path):
    write_series(tmp_path, tilted(degrees))
    source = read_source(tmp_path)
    assert f"tilted by {abs(degrees):.1f} degrees" in source.notes[0]
    assert source.volume.voxels.shape[0] == 26
    assert source.volume.voxels.max() > LEVEL


@pytest.mark.parametrize("degrees", [2.0, -5.0, 25.0])
def test_labels_go_back_to_tilted_slices_within_a_tenth_of_a_voxel(degrees, tmp_path):
    made = tilted(degrees)
    write_series(tmp_path, made)
    source = read_source(tmp_path)
    assert source.grid.spacing_mm[1:] == pytest.approx(made.pixel_mm)  # label maps have the scan's pixels
    assert read_scan(tmp_path).grid.same_place(source.grid)
    found = planes(balls_on(source.slices, IDS), source.series)
    slices = [plane for _, plane in sorted(zip(source.series.frames, found, strict=True), key=height)]
    for name, truth in CENTRES_MM.items():
        away_mm = centroid(np.stack(slices) == IDS[name], made.affine) - truth
        assert np.abs(np.linalg.inv(made.affine[:3, :3]) @ away_mm).max() < 0.1, name


def is_within(grid, made):
    """Of every voxel of a grid, whether its middle is within a slice of the scan."""
    index = np.indices(grid.shape).reshape(3, -1)[::-1]
    places = LPS @ grid.affine @ np.vstack([index, np.ones(index.shape[1])])
    own = np.linalg.inv(made.affine) @ places
    inside = (own[:3].T > -0.5) & (np.array(made.shape[::-1]) - 0.5 > own[:3].T)
    return inside.all(axis=1).reshape(grid.shape)


def height(pair):
    return pair[0].position_mm[2]


@pytest.mark.parametrize("made", [tilted(18.0), tilted(-5.0), tilted(18.0).without(9, 10)])
def test_a_straightened_scan_knows_which_voxels_were_scanned(made, tmp_path):
    write_series(tmp_path, made)
    source = read_source(tmp_path)
    np.testing.assert_array_equal(source.volume.scanned, is_within(source.volume.grid, made))
    assert (source.volume.voxels[source.volume.scanned] > -1024).all()  # no tissue is mixed with padding
    assert source.slices.shape == made.shape
    np.testing.assert_allclose(
        LPS @ source.slices.affine @ [49, 45, 0, 1], [*made.positions[0], 1], atol=1e-4
    )


def test_slices_moved_each_in_another_way_are_straightened_too(tmp_path):
    paths = write_series(tmp_path)
    for number, path in enumerate(paths):
        data = read_header(path)
        data.ImagePositionPatient[0] += 1.9 * (7 if number % 2 else 0)  # 7 columns
        data.save_as(path)
    source = read_source(tmp_path)
    assert source.slices is None
    assert source.volume.scanned.sum() == AXIAL.voxels.size
    assert (source.volume.scanned.sum(axis=2)[::2] == 50).all()
    assert source.volume.voxels.shape[2] == 57


def test_a_tilted_scan_is_hardly_larger_than_a_straight_one(tmp_path):
    made = tilted(18.0)
    write_series(tmp_path, made)
    source = read_source(tmp_path)
    assert source.volume.voxels.shape == (26, 46 + 12, 50)  # 25 steps of 0.456 pixels
    assert source.volume.grid.spacing_mm[1:] == pytest.approx(made.pixel_mm)


def test_labels_of_a_sheared_nifti_go_back_to_its_own_grid(tmp_path):
    source = read_source(write_nifti(tmp_path / "a.nii", GEOMETRIES["tilted"]))
    assert source.grid.same_place(read_scan(tmp_path / "a.nii").grid)
    assert source.volume.grid.shape[1] > source.grid.shape[1]
    np.testing.assert_array_equal(source.on_grid.voxels, read_scan(tmp_path / "a.nii").voxels)
    np.testing.assert_array_equal(source.volume.scanned, is_within(source.volume.grid, GEOMETRIES["tilted"]))


def test_a_missing_slice_is_interpolated_and_reported(tmp_path):
    write_series(tmp_path, AXIAL.without(9, 18))
    source = read_source(tmp_path)
    assert source.volume.voxels.shape[0] == 26
    assert "24 were interpolated to 26 at 3.10 mm" in source.notes[0]
    assert_balls_lie_where_they_are(source, tolerance_voxels=0.3)  # a slice of a ball is gone


def test_too_many_missing_slices_are_refused_with_the_numbers_unless_forced(tmp_path):
    write_series(tmp_path, AXIAL.without(*range(12, 20)))
    with pytest.raises(ScanError, match=r"8 slices.*-4\.7.*23\.2 mm.*27\.9"):
        read_source(tmp_path)
    assert read_source(tmp_path, force=True).volume.voxels.shape[0] == 26


def test_a_series_whose_gaps_change_is_resampled(tmp_path):
    made = AXIAL.without(*range(1, 10, 2))
    write_series(tmp_path, made)
    source = read_source(tmp_path)
    assert "3.10 to 6.20 mm" in source.notes[0]
    assert_balls_lie_where_they_are(source, tolerance_voxels=0.3)  # half the slices are gone there


def test_slices_that_are_there_twice_are_read_once(tmp_path):
    write_series(tmp_path)
    write_series(tmp_path, name="again")
    source = read_source(tmp_path)
    assert source.notes == ("26 slices were there twice; one of each was kept.",)
    assert_balls_lie_where_they_are(source)


def test_two_phases_in_one_series_are_told_apart_by_their_acquisition(tmp_path):
    write_series(tmp_path)
    write_series(tmp_path, name="later", AcquisitionNumber=2, RescaleIntercept=-1)
    with pytest.raises(ScanError, match="2 series could be meant"):
        read_source(tmp_path)
    for choice in ("2", read_header(next(tmp_path.iterdir())).SeriesInstanceUID):  # both phases have these
        with pytest.raises(ScanError, match="2 series are"):
            read_source(tmp_path, series=choice)
    assert_balls_lie_where_they_are(read_source(tmp_path, series="#2"))


def test_different_slices_in_one_place_are_refused(tmp_path):
    write_series(tmp_path)
    for path in write_series(tmp_path, name="other"):
        data = read_header(path)
        data.PixelData = (np.frombuffer(data.PixelData, np.int16) + 1).tobytes()
        data.save_as(path)
    with pytest.raises(ScanError, match="26 of 52 slices"):
        read_source(tmp_path)


def test_scouts_reports_and_other_files_are_left_out(tmp_path):
    write_series(tmp_path / "ct")
    write_series(
        tmp_path / "scout",
        GEOMETRIES["coronal"].without(*range(3, 26)),
        SeriesInstanceUID="1.2.3",
        ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"],
    )
    write_series(tmp_path / "mr", SeriesInstanceUID="1.2.4", modality="MR")
    write_series(
        tmp_path / "mpr",
        GEOMETRIES["sagittal"],
        SeriesInstanceUID="1.2.5",
        ImageType=["DERIVED", "SECONDARY", "MPR"],
    )
    save(tmp_path / "report.dcm", header(modality="SR", SOPClassUID=ComprehensiveSRStorage))
    (tmp_path / "DICOMDIR").write_bytes(b"no more")
    (tmp_path / "readme.txt").write_text("hello")
    source = read_source(tmp_path)
    assert source.series is not None
    assert source.series.modality == "CT"
    assert source.grid.orientation == "LPS"
    assert_balls_lie_where_they_are(source)


def test_a_scout_in_the_series_itself_is_left_out(tmp_path):
    write_series(tmp_path)
    write_series(
        tmp_path,
        GEOMETRIES["sagittal"].without(*range(1, 26)),
        name="scout",
        ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"],
    )
    assert read_source(tmp_path).volume.voxels.shape[0] == 26


def test_two_reconstructions_are_listed_and_one_can_be_chosen(tmp_path):
    write_series(tmp_path / "a", SeriesDescription="Soft 2.4")
    write_series(tmp_path / "b", AXIAL.without(0), SeriesDescription="Lung 2.4", SeriesInstanceUID="1.2.3")
    with pytest.raises(ScanError) as caught:
        read_source(tmp_path)
    assert re.search(r'#1: series 2 "Soft 2\.4" \(CT, 26 slices 3\.10 mm.* 1\.2\.826', str(caught.value))
    assert re.search(r'#2: series 2 "Lung 2\.4" \(CT, 25 slices 3\.10 mm.* 1\.2\.3', str(caught.value))
    for choice in ("#2", "1.2.3"):
        assert read_source(tmp_path, series=choice).volume.voxels.shape[0] == 25
    for choice in ("7", "#7", "1.2.3.4", ""):
        with pytest.raises(ScanError, match=f"no series is '{choice}'"):
            read_source(tmp_path, series=choice)


@pytest.mark.parametrize("padding", [-2000, -3024])
def test_padding_becomes_air(padding, tmp_path):
    paths = write_series(tmp_path / "with", PixelPaddingValue=padding)
    write_series(tmp_path / "plain")
    for path in paths:
        data = read_header(path)
        pixels = np.frombuffer(data.PixelData, np.int16).copy()
        pixels[pixels == AIR] = padding
        data.PixelData = pixels.tobytes()
        data.save_as(path)
    found, plain = read_scan(tmp_path / "with").voxels, read_scan(tmp_path / "plain").voxels
    np.testing.assert_array_equal(found, np.where(plain == AIR, -1024, plain))
    for path in paths:  # and where no header field tells
        data = read_header(path)
        del data.PixelPaddingValue
        data.save_as(path)
    source = read_source(tmp_path / "with")
    np.testing.assert_array_equal(source.volume.voxels, found)
    assert f"down to {padding}" in source.notes[0]


def test_a_padding_value_that_is_a_tissue_is_not_believed(tmp_path):
    write_series(tmp_path, PixelPaddingValue=40)
    assert (read_scan(tmp_path).voxels == 40).any()


def test_slope_and_intercept_are_applied(tmp_path):
    write_series(tmp_path / "offset", RescaleIntercept=-1024)
    write_series(tmp_path / "plain")
    write_series(tmp_path / "half", RescaleSlope=0.5)
    plain = read_scan(tmp_path / "plain").voxels
    np.testing.assert_array_equal(read_scan(tmp_path / "offset").voxels, plain)
    np.testing.assert_array_equal(read_scan(tmp_path / "half").voxels, plain * np.float32(0.5))


def test_a_zip_a_folder_and_one_enhanced_file_hold_the_same_scan(tmp_path):
    files = write_series(tmp_path / "series")
    plain = read_scan(tmp_path / "series")
    zipped = read_scan(write_zip(tmp_path / "a.zip", files))
    enhanced = read_scan(write_enhanced(tmp_path / "a.dcm"))
    by_itk = read_scan(write_by_itk(tmp_path / "a.mhd"))
    for other in (zipped, enhanced, by_itk):
        np.testing.assert_array_equal(other.voxels, plain.voxels)
        assert other.grid.same_place(plain.grid)


@needs_real_data
def test_a_real_compressed_series_is_read():
    source = read_source(REAL / "chest-abdomen-20-slices")
    assert source.volume.voxels.shape == (20, 512, 512)
    assert source.volume.grid.spacing_mm == pytest.approx((2.0, 0.9765625, 0.9765625))
    assert source.volume.grid.affine[2, 3] == pytest.approx(-804.5)
    assert source.volume.voxels.min() == -1024


@needs_real_data
def test_a_real_tilted_gantry_is_straightened():
    source = read_source(REAL / "trouble" / "gantrytilting" / "001")
    assert "tilted by 14.0 degrees" in source.notes[0]
    assert source.volume.grid.spacing_mm[0] == pytest.approx(5 * np.cos(np.radians(14)), abs=1e-3)


@needs_real_data
@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("notavolume", "no CT volume .* #4: "),
        ("slicecount", r"images are MR; CT .*MR, 2 slices 1\.00 mm apart"),
    ],
)
def test_real_series_that_are_no_volume_are_refused(case, sentence):
    with pytest.raises(ScanError) as caught:
        read_source(REAL / "trouble" / case / "001")
    assert re.search(sentence, str(caught.value), re.DOTALL)

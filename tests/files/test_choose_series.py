"""Which series of a study is read: by number, UID, position or rule, and never by chance."""

from __future__ import annotations

import pytest
from made_scans import AXIAL, GEOMETRIES, read_header, turned, write_series

from continual_segment.errors import ConfigError, ScanError
from continual_segment.files import read_source
from continual_segment.files.dicom.choose import check_pick, series_of_each
from continual_segment.files.dicom.listing import for_manifest, title

FEW = AXIAL.without(*range(8, 26))
SCOUT = {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}


def write(folder, number, made=FEW, **values):
    """A series with a number and a UID of its own."""
    values = {"SeriesNumber": number, "SeriesInstanceUID": f"1.2.{number}"} | values
    write_series(folder / f"{values['SeriesInstanceUID']}_{number}", made, **values)


@pytest.fixture
def study(tmp_path):
    """Three CT series: the order of the list is not that of their numbers."""
    write(tmp_path, 3, AXIAL.without(25), SeriesDescription="Venous")
    write(tmp_path, 2, AXIAL.without(24, 25), SeriesDescription="Arterial", ConvolutionKernel=["Br40", "3"])
    write(tmp_path, 1, AXIAL.without(23, 24, 25), ContrastBolusAgent="Iodine", ImageComments="delay 30 s")
    return tmp_path


@pytest.mark.parametrize(
    ("choice", "number"),
    [("1", 1), ("2", 2), ("3", 3), ("02", 2), ("#1", 3), ("#2", 2), ("#3", 1), ("1.2.3", 3)],
)
def test_a_number_is_the_series_number_and_a_position_has_a_hash(choice, number, study):
    source = read_source(study, series=choice)
    assert source.series.number == number


def test_the_list_shows_what_distinguishes_series(study):
    with pytest.raises(ScanError, match="3 series could be meant") as caught:
        read_source(study)
    first, second, third = str(caught.value).splitlines()[1:]
    assert '#1: series 3 "Venous" (CT, 25 slices 3.10 mm apart, 2.10 x 1.90 mm pixels' in first
    assert '#2: series 2 "Arterial"' in second
    assert "kernel Br40/3" in second
    assert "contrast Iodine" in third
    assert "comment delay 30 s" in third
    assert third.endswith(" 1.2.1")


@pytest.mark.parametrize("choice", ["4", "#4", "#0", "0", "1.2.4", "", "x"])
def test_what_matches_no_series_is_an_error_with_the_list(choice, study):
    with pytest.raises(ScanError, match="no series is") as caught:
        read_source(study, series=choice)
    assert len(str(caught.value).splitlines()) == 4


def test_a_number_that_two_series_have_is_an_error_with_the_list(study):
    write(study, 2, SeriesInstanceUID="1.3.2")
    with pytest.raises(ScanError, match="2 series are '2'") as caught:
        read_source(study, series="2")
    assert len(str(caught.value).splitlines()) == 5
    assert read_source(study, series="1.3.2").series.uid == "1.3.2"


def test_a_scout_of_the_same_number_is_not_meant(tmp_path):
    write(tmp_path, 2)
    write(tmp_path, 2, GEOMETRIES["coronal"].without(*range(3, 26)), SeriesInstanceUID="1.3", **SCOUT)
    assert read_source(tmp_path, series="2").series.uid == "1.2.2"


def test_hostile_descriptions_are_shown_on_one_line(study):
    write(study, 9, SeriesDescription="\x1b[2J\x1b[31mred\nline" + "x" * 40, ConvolutionKernel="\x1b]0;K\a")
    with pytest.raises(ScanError) as caught:
        read_source(study)
    assert "\x1b" not in str(caught.value)
    assert "\a" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 5
    assert "\x1b" not in title(read_source(study, series="9").series)


def test_rules_pick_by_thickness_or_number_of_slices(tmp_path):
    write(tmp_path, 5, AXIAL)
    write(tmp_path, 6, turned([1, 0, 0], [0, 1, 0], [0, 0, 1.5], shape=(12, 46, 50)))
    assert read_source(tmp_path, pick="thinnest").series.number == 6
    assert read_source(tmp_path, pick="most-slices").series.number == 5
    with pytest.raises(ScanError, match="2 series could be meant"):
        read_source(tmp_path)


def test_thick_slices_that_overlap_are_not_the_thinnest(tmp_path):
    write(tmp_path, 1, AXIAL)
    write(tmp_path, 2, turned([1, 0, 0], [0, 1, 0], [0, 0, 1.0], shape=(12, 46, 50)))
    for path in (tmp_path / "1.2.2_2").iterdir():
        data = read_header(path)
        data.SliceThickness = 5.0
        data.save_as(path)
    assert read_source(tmp_path, pick="thinnest").series.number == 1


def test_among_equals_a_rule_takes_the_lowest_number(tmp_path):
    for number in (11, 4, 7):
        write(tmp_path, number)
    for pick in ("thinnest", "most-slices"):
        assert read_source(tmp_path, pick=pick).series.number == 4


def test_a_rule_does_not_choose_among_patients(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, AXIAL, StudyInstanceUID="1.9")
    with pytest.raises(ScanError, match="of 2 studies"):
        read_source(tmp_path, pick="most-slices")
    with pytest.raises(ScanError, match="of 2 studies"):
        series_of_each(tmp_path)


def test_every_candidate_can_be_chosen_by_what_is_given_with_it(tmp_path):
    write(tmp_path, 1)
    for name in ("phase one", "phase two"):  # one UID, distinguished by their acquisition
        number = 3 + (name == "phase two")
        write_series(
            tmp_path / name, SeriesInstanceUID="1.5", AcquisitionNumber=number, RescaleIntercept=-number
        )
    found = series_of_each(tmp_path)
    assert len({wanted for wanted, _ in found}) == len(found) == 3
    for wanted, series in found:
        chosen = read_source(tmp_path, series=wanted).series
        assert (chosen.uid, chosen.header.AcquisitionNumber) == (series.uid, series.header.AcquisitionNumber)


def test_the_manifest_has_the_number_and_a_hash_of_the_description(study):
    series = read_source(study, series="3").series
    data = for_manifest(series)
    assert (data["number"], data["slices"], len(data["sha256_of_description"])) == (3, 25, 64)
    assert "Venous" not in str(data)
    assert series.uid not in str(data)
    assert data != for_manifest(read_source(study, series="2").series)


@pytest.mark.parametrize(("pick", "wanted"), [("thickest", None), ("all", "2"), ("", None)])
def test_rules_that_cannot_be_are_refused(pick, wanted):
    with pytest.raises(ConfigError):
        check_pick(pick, wanted)


@pytest.mark.parametrize("made", [FEW, AXIAL.without(*range(8, 18)), AXIAL.without(*range(2, 26))])
def test_images_of_another_modality_are_called_that_before_anything_else(made, tmp_path):
    write(tmp_path, 1, made, modality="MR")
    with pytest.raises(ScanError, match=r"The images are MR; CT .* was expected"):
        read_source(tmp_path)
    with pytest.raises(ScanError, match=r"The images are MR; CT .* was expected"):
        read_source(tmp_path, series="1")


def test_several_series_of_other_modalities_are_called_that(tmp_path):
    for number in range(4):
        write(tmp_path, number, modality="MR")
    write(tmp_path, 4, modality="PT")
    with pytest.raises(ScanError, match="The images are MR and PT; CT"):
        read_source(tmp_path)
    with pytest.raises(ScanError, match="5 series could be meant"):
        read_source(tmp_path, force=True)
    assert read_source(tmp_path, series="4", force=True).modality == "PT"


def test_among_other_modalities_and_scouts_the_ct_is_taken(tmp_path):
    write(tmp_path, 1, AXIAL, modality="MR")
    write(tmp_path, 2, AXIAL, modality="PT")
    write(tmp_path, 3, GEOMETRIES["coronal"].without(*range(4, 26)), **SCOUT)
    with pytest.raises(ScanError, match="The images are MR and PT; CT"):  # the scout is no volume
        read_source(tmp_path)
    write(tmp_path, 4)
    assert read_source(tmp_path).series.number == 4

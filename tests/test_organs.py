"""Organ names and ids: what a number in a label map means must never change."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_segment import organs
from continual_segment.organs import Organ, canonical_name, find_organ, known_organs


def test_ids_count_up_from_one_without_gap_or_repeat():
    assert [organ.id for organ in known_organs()] == list(range(1, len(known_organs()) + 1))
    assert len({organ.name for organ in known_organs()}) == len(known_organs())


def test_the_paper_s_143_organs_keep_their_ids_for_ever():
    names = "\n".join(organ.name for organ in known_organs()[:143])
    assert names.splitlines()[:3] == ["spleen", "kidney_right", "kidney_left"]
    assert names.splitlines()[102:105] == ["urinary_bladder", "sternum", "thyroid_left"]
    assert names.splitlines()[-1] == "temporomandibular_joint_right"
    digest = hashlib.sha256(names.encode()).hexdigest()
    assert digest == "0e16896ed6b59ae6c148ed567c3f3fca3951726c7f89b0ecc7ecb02bb08efebc"


def test_rows_are_only_ever_appended_to_the_table():
    """A row may be added below (then this digest's count stays); none may be changed or moved."""
    rows = "\n".join(f"{organ.id} {organ.name}" for organ in known_organs()[:378])
    assert (
        hashlib.sha256(rows.encode()).hexdigest()
        == "a7973f848b77aceaab37c5b89d1b5854eab8ac23637542997075fb81fd906280"
    )


def test_no_spelling_means_two_organs():
    meanings = defaultdict(set)
    for organ, spellings in organs._table():
        for spelling in spellings:
            for key in organs._spellings(spelling):
                meanings[key].add(organ.name)
    assert {key: names for key, names in meanings.items() if len(names) > 1} == {}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("vertebrae_L5", "vertebrae_L5"),  # TotalSegmentator
        ("hip_left", "hip_left"),
        ("iliac_vena_left", "iliac_vena_left"),
        ("thyroid_gland", "thyroid_gland"),
        ("brachiocephalic_vein_left", "brachiocephalic_vein_left"),
        ("eye_lens_left", "lens_left"),
        ("parotid_gland_right", "parotid_right"),
        ("liver_tumor", "liver_tumor"),
        ("vertebra_L5", "vertebrae_L5"),  # MOOSE
        ("vertebra_L6", "vertebrae_L6"),
        ("portal_splenic_vein", "portal_vein_and_splenic_vein"),
        ("clavicle_left", "clavicula_left"),
        ("bladder", "urinary_bladder"),
        ("spinal_chord", "spinal_cord"),
        ("fingers_left", "phalanges_hand_left"),
        ("LeftParotid", "parotid_left"),  # OpenKBP
        ("SpinalCord", "spinal_cord"),
        ("Brainstem", "brainstem"),
        ("Mandible", "mandible"),
        ("Adrenal-gland left", "adrenal_gland_left"),  # typed by hand
        ("KIDNEY RIGHT", "kidney_right"),
        ("right kidney", "kidney_right"),
        ("Parotid_L", "parotid_left"),
        ("Gall Bladder", "gallbladder"),
        ("left rib 3", "rib_left_3"),
        ("Lung tumor", "lung_tumour"),
        ("esophageal tumour", "esophagus_tumour"),
    ],
)
def test_other_spellings_find_the_organ(spelling, name):
    assert canonical_name(spelling) == name
    assert find_organ(spelling).name == name


@given(st.sampled_from([organ.name for organ in known_organs()]), st.sampled_from("_ -"))
def test_case_and_separators_never_matter(name, separator):
    spelling = name.replace("_", separator)
    for variant in (spelling, spelling.upper(), spelling.lower(), f" {spelling} "):
        assert canonical_name(variant) == name


@given(st.text(min_size=1))
def test_a_canonical_name_is_its_own_canonical_name(name):
    assert canonical_name(canonical_name(name)) == canonical_name(name)


def test_an_unknown_organ_gets_the_same_id_on_every_machine():
    organ = find_organ("Flux capacitor")
    assert organ == Organ("flux_capacitor", 26464)
    assert find_organ("flux-capacitor") == organ
    assert find_organ("flux_capacitor_left").side == "left"


@given(st.text(st.characters(categories=["L", "N"]), min_size=1))
def test_ids_of_unknown_organs_lie_above_the_table_and_within_uint16(name):
    organ = find_organ(f"zz{name}")
    assert 1000 <= organ.id <= 65535


@pytest.mark.parametrize("name", ["", "  ", "--"])
def test_a_name_without_letters_is_refused(name):
    with pytest.raises(ValueError, match="needs a name"):
        find_organ(name)


def test_every_row_is_well_formed():
    for organ in known_organs():
        assert organ.body_part in {"head_neck", "chest", "abdomen", "hip_thigh", "whole"}
        assert organ.side in {"left", "right", ""}
        assert organ.snomed.isdecimal() or not organ.snomed
        assert organ.id < organs.FIRST_HASHED_ID


def test_both_sides_share_one_code_and_differ_in_the_modifier():
    left, right = find_organ("kidney_left"), find_organ("kidney_right")
    assert left.snomed == right.snomed == "64033007"
    assert (left.side, right.side) == ("left", "right")
    assert find_organ("heart_atrium_left").side == ""  # its code is of the left atrium already

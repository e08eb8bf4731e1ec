"""Organ names and ids: what a number in a label map means must never change."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_segment import organs
from continual_segment.errors import ModelError
from continual_segment.organs import (
    MOST_ORGANS,
    Organ,
    canonical_name,
    check_organs,
    check_table,
    find_organ,
    known_organs,
    other_side,
)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kidney_left", "kidney_right"),
        ("Right Parotid", "parotid_left"),
        ("rib_left_7", "rib_right_7"),
        ("flux_capacitor_left", "flux_capacitor_right"),
        ("spinal_cord", "spinal_cord"),
        ("heart_atrium_left", "heart_atrium_left"),
    ],
)
def test_the_other_side_of_an_organ(name, expected):
    assert other_side(name) == expected


def test_every_organ_is_the_other_side_of_its_other_side():
    names = [organ.name for organ in known_organs()]
    assert [other_side(other_side(name)) for name in names] == names


def words(text):
    return text.split()


def sided(*names):
    return [f"{name}_{side}" for name in names for side in ("left", "right")]


LEVELS = (("C", 7), ("T", 12), ("L", 5))
VERTEBRAE = [f"vertebrae_{part}{n}" for part, count in LEVELS for n in range(1, count + 1)]
RIBS = [f"rib_{side}_{n}" for side in ("left", "right") for n in range(1, 13)]
BOTH_VERSIONS = [
    *sided("kidney", "adrenal_gland", "lung_upper_lobe", "lung_lower_lobe", "iliac_artery", "iliac_vena"),
    *sided("humerus", "scapula", "clavicula", "femur", "hip", "autochthon", "iliopsoas"),
    *sided("gluteus_maximus", "gluteus_medius", "gluteus_minimus"),
    *words("spleen gallbladder liver stomach aorta inferior_vena_cava portal_vein_and_splenic_vein pancreas"),
    *words(
        "lung_middle_lobe_right esophagus trachea brain small_bowel duodenum colon sacrum urinary_bladder"
    ),
]
CHAMBERS = words(
    "heart_myocardium heart_atrium_left heart_ventricle_left heart_atrium_right heart_ventricle_right"
)
SECOND_VERSION = [
    *sided("kidney_cyst", "subclavian_artery", "common_carotid_artery", "brachiocephalic_vein"),
    *words("thyroid_gland prostate vertebrae_S1 heart pulmonary_vein brachiocephalic_trunk sternum skull"),
    *words("atrial_appendage_left superior_vena_cava spinal_cord costal_cartilages"),
]
OTHER_TOOLS = {
    "TotalSegmentator v1": [*BOTH_VERSIONS, *VERTEBRAE, *RIBS, *CHAMBERS, "pulmonary_artery", "face"],
    "TotalSegmentator v2": [*BOTH_VERSIONS, *VERTEBRAE, *RIBS, *SECOND_VERSION],
    "MOOSE": [
        *sided("adrenal_gland", "kidney", "lung_lower_lobe", "lung_upper_lobe", "thyroid", "iliac_artery"),
        *sided("iliac_vena", "carpal", "clavicle", "femur", "fibula", "fingers", "humerus", "metacarpal"),
        *sided("metatarsal", "patella", "radius", "scapula", "tarsal", "tibia", "toes", "ulna", "hip"),
        *sided("autochthon", "gluteus_maximus", "gluteus_medius", "gluteus_minimus", "iliopsoas"),
        *words("bladder brain gallbladder liver lung_middle_lobe_right pancreas spleen stomach trachea"),
        "skull",
        *words("aorta inferior_vena_cava portal_splenic_vein pulmonary_artery sternum sacrum eyes prostate"),
        *words("colon duodenum esophagus small_bowel spinal_chord skeletal_muscle subcutaneous_fat"),
        *words("visceral_fat thoracic_fat Face testicles rib_left_13 rib_right_13 vertebrae_L6"),
        *CHAMBERS, *VERTEBRAE, *RIBS,
    ],
}  # fmt: skip


@pytest.mark.parametrize("tool", OTHER_TOOLS)
def test_every_name_of_other_tools_is_an_organ_of_the_table(tool):
    known = {organ.name for organ in known_organs()}
    assert [name for name in OTHER_TOOLS[tool] if find_organ(name).name not in known] == []
    found = [find_organ(name).id for name in OTHER_TOOLS[tool]]
    assert len(set(found)) == len(found)  # no two names of one tool are the same organ


def test_all_classes_of_both_totalsegmentators_are_there():
    assert len(OTHER_TOOLS["TotalSegmentator v1"]) == 104
    assert len(OTHER_TOOLS["TotalSegmentator v2"]) == 117


def test_every_snomed_code_has_a_sound_check_digit():
    """SNOMED ends every code with a check digit by Verhoeff, which shows a slip of one digit."""
    turn = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]
    for organ in known_organs():
        check = 0
        for place, digit in enumerate(map(int, reversed(organ.snomed))):
            for _ in range(place % 8):
                digit = turn[digit]
            check = _in_pentagon(check, digit)
        assert check == 0, organ


def _in_pentagon(first, second):
    """Two of the ten moves of a pentagon, one after the other: 0 to 4 turn it, 5 to 9 turn it over, too."""
    turned = (first + second if first < 5 else first - second) % 5
    return turned + 5 * ((first >= 5) != (second >= 5))


def test_two_organs_share_a_code_only_as_sides_or_as_fingers_and_toes():
    meanings = defaultdict(set)
    for organ in known_organs():
        if organ.snomed:
            meanings[organ.snomed, organ.side].add(organ.name.removesuffix(f"_{organ.side}"))
    shared = {code: names for code, names in meanings.items() if len(names) > 1}
    assert all(names == {"phalanges_feet", "phalanges_hand"} for names in shared.values())


def test_the_organs_most_asked_for_have_codes():
    named = {find_organ(name) for name in OTHER_TOOLS["TotalSegmentator v2"]}
    without = {organ.name for organ in named if not organ.snomed}
    assert without <= {"kidney_cyst_left", "kidney_cyst_right"}  # findings, which are no body structures


# ---- organs from a file of a stranger


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../liver"}, {"name": "/liver"}, {"name": "liver\n"}, {"name": "li\x1bver"}, {"name": ""},
        {"name": "liver left"}, {"name": "_liver"}, {"id": 0}, {"id": -1}, {"id": 65536}, {"id": 5.0},
        {"id": True}, {"id": float("nan")}, {"snomed": "12a"}, {"snomed": "1" * 19}, {"body_part": "leg"},
        {"side": "both"}, {"group": "<script>"},
    ],
)  # fmt: skip
def test_an_organ_that_cannot_be_fails_on_construction(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Organ(**({"name": "liver", "id": 5} | wrong))


def test_every_organ_of_the_table_may_be_in_one_pack():
    check_organs(known_organs(), ModelError)
    check_table(known_organs(), ModelError)


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40))
def test_an_organ_that_was_found_is_in_our_spelling(name):
    found = find_organ(name)
    try:
        check_organs([found], ModelError)
    except ModelError:  # CON and the like are no file names on Windows
        assert len(found.name) <= 4 or len(found.name.encode()) > 200
    check_table([found], ModelError)


@pytest.mark.parametrize(
    "organs",
    [
        [],
        [Organ("liver", 5), Organ("liver", 7)],
        [Organ("liver", 5), Organ("spleen", 5)],
        [Organ("Liver", 5)],
        [Organ("aux", 1234)],
        [Organ("y" * 201, 1234)],
        [Organ(f"organ{number}", 1000 + number) for number in range(MOST_ORGANS + 1)],
    ],
)
def test_organs_that_cannot_be_in_one_pack_are_refused(organs):
    with pytest.raises(ModelError):
        check_organs(organs, ModelError)


@pytest.mark.parametrize(
    "organ",
    [Organ("liver", 1234), Organ("my_organ", find_organ("liver").id), Organ("bladder", 1234)],
    ids=["another id", "another name", "an alias"],
)
def test_an_organ_that_is_another_one_in_the_table_is_refused(organ):
    with pytest.raises(ModelError, match="table"):
        check_table([organ], ModelError)

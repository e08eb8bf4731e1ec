"""Which channel is which organ."""

import pytest
import torch

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.phantom import organ_lists
from continual_segment.organs import find_organ


def known(names):
    return tuple(map(find_organ, names))


def test_an_organ_that_two_datasets_label_is_one_channel(overlapping):
    assert [organ.name for organ in overlapping.organs] == [
        "liver",
        "esophagus",
        "spleen",
        "aorta",
        "sternum",
        "trachea",
    ]
    assert overlapping.labelled == (5, 2, 6)
    assert overlapping.new == (5, 6)


def test_shared_organs_are_labelled_organs_and_never_background(overlapping):  # T42
    assert overlapping.shared == (2,)
    assert set(overlapping.shared) < set(overlapping.labelled)
    assert 0 not in overlapping.shared


def test_groups_part_all_channels(overlapping):
    assert sorted((*overlapping.background_of_labels, *overlapping.labelled)) == list(range(7))
    assert sorted((*overlapping.background_of_student, *overlapping.old_only)) == list(range(7))
    assert sorted((*overlapping.background_of_teacher, *overlapping.old_only)) == list(range(5))


def test_the_chest_shares_the_inferior_vena_cava_with_the_broad_dataset_not_the_superior():  # T44
    step = StepClasses.of(known(organ_lists.TOTALSEG), known(organ_lists.CHEST))
    shared = {step.organs[channel - 1].name for channel in step.shared}
    assert shared == {"esophagus", "trachea", "pulmonary_artery", "inferior_vena_cava"}


def test_the_head_grows_to_143_organs_in_either_order():
    lists = (organ_lists.TOTALSEG, organ_lists.CHEST, organ_lists.HEADNECK, organ_lists.ESOPHAGUS)
    for order, expected in (((0, 1, 2, 3), [104, 131, 144, 144]), ((0, 2, 1, 3), [104, 117, 144, 144])):
        organs, found = (), []
        for number in order:
            step = StepClasses.of(organs, known(lists[number]))
            organs = step.organs
            found.append(step.channels)
        assert found == expected


def test_labels_become_channels(overlapping):
    labels = torch.tensor([[[[0, 1, 2, 3]]]])
    assert overlapping.as_channels(labels).tolist() == [[[[0, 5, 2, 6]]]]


@pytest.mark.parametrize("wrong", [4, -1])
def test_a_label_the_dataset_does_not_have_is_refused(overlapping, wrong):  # T43
    with pytest.raises(ValueError, match="the dataset has 3 organs"):
        overlapping.as_channels(torch.tensor([[[[0, wrong]]]]))

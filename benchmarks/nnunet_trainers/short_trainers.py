"""nnU-Net's own trainer with short epochs, so that two CPU cores see the end; found by `nnUNet_extTrainer`.

Only lengths differ: 40 epochs of 50 updates (or CONSEG_EPOCHS of them) with a checkpoint after each, and no
validation on whole scans at the end, which takes longer than the training and which no benchmark reads.
OMP_NUM_THREADS decides the threads; nnU-Net takes one per core, and on a busy machine these wait for each
other most of the time.
"""

import os

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainer_onlyMirror01,
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.optimizer.nnUNetTrainerAdam import nnUNetTrainerAdam


class nnUNetTrainerShort(nnUNetTrainer):
    # nnU-Net reads the names of these parameters, so they are spelled out
    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
        self.num_epochs = int(os.environ.get("CONSEG_EPOCHS", "40"))
        self.num_iterations_per_epoch = 50
        self.num_val_iterations_per_epoch = 2
        self.save_every = 1

    def perform_actual_validation(self, save_probabilities=False):
        self.print_to_log_file("The final validation is left out.")


class nnUNetTrainerShortNoMirroring(nnUNetTrainerShort, nnUNetTrainerNoMirroring):
    """Left and right stay what they are, as in TotalSegmentator's trainers."""


class nnUNetTrainerShortAdam(nnUNetTrainerShort, nnUNetTrainerAdam):
    """nnU-Net's variant with AdamW finds organs in some hundred updates, SGD none in as many."""

    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.initial_lr = 2e-3


class nnUNetTrainerShortAdamMirror01(nnUNetTrainerShortAdam, nnUNetTrainer_onlyMirror01):
    """Mirrors along all axes but the last, which is left and right."""


class nnUNetTrainerShortAdamNoMirroring(nnUNetTrainerShortAdam, nnUNetTrainerNoMirroring):
    pass


class nnUNetTrainerShortFineTuned(nnUNetTrainerShortAdamNoMirroring):
    """The same under another name: fine-tuned models are stored beside those that began at random."""

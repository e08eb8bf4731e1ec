"""Networks: nn.Modules and the plain data that describes their shape."""

from continual_segment.networks.decoder import Decoder
from continual_segment.networks.decoder_plan import DecoderPlan, multiply_adds, paper_count, true_count
from continual_segment.networks.encoder import GeneralEncoder, NetworkConfig
from continual_segment.networks.mixed_decoder import MixedDecoder
from continual_segment.networks.nnunet_names import split_nnunet_state
from continual_segment.networks.prunable_decoder import Mask, PrunableDecoder

__all__ = [
    "Decoder",
    "DecoderPlan",
    "GeneralEncoder",
    "Mask",
    "MixedDecoder",
    "NetworkConfig",
    "PrunableDecoder",
    "multiply_adds",
    "paper_count",
    "split_nnunet_state",
    "true_count",
]

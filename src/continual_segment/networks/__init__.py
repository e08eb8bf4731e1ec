"""Networks: nn.Modules and the plain data that describes their shape."""

from continual_segment.networks.decoder import Decoder
from continual_segment.networks.decoder_plan import DecoderPlan, paper_count, true_count
from continual_segment.networks.general_encoder import GeneralEncoder, NetworkConfig
from continual_segment.networks.nnunet_names import split_nnunet_state

__all__ = [
    "Decoder",
    "DecoderPlan",
    "GeneralEncoder",
    "NetworkConfig",
    "paper_count",
    "split_nnunet_state",
    "true_count",
]

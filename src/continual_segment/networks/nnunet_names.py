"""Split a stock nnU-Net v2 checkpoint into a general encoder and a first decoder.

PlainConvUNet and ResidualEncoderUNet keep the encoder a second time inside their decoder, and every layer a
second time in `all_modules`; both are dropped. All other names are ours already.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

State = dict[str, Tensor]


def split_nnunet_state(network_weights: Mapping[str, Tensor]) -> tuple[State, State]:
    """The state dicts of GeneralEncoder and Decoder inside the state dict of either network."""
    kept = {name: tensor for name, tensor in network_weights.items() if ".all_modules." not in name}
    return _below("encoder.", kept), {
        name: tensor for name, tensor in _below("decoder.", kept).items() if not name.startswith("encoder.")
    }


def _below(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}

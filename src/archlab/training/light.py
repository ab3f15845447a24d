"""torch's AdamW without torch's compiler, which it loads, a second's work, only to keep itself out of graphs: nothing
compiles an optimiser here."""

from inspect import unwrap

import torch
from torch.optim import AdamW


class LightAdamW(AdamW):
    """AdamW whose methods are as torch wrote them."""

    add_param_group = unwrap(AdamW.add_param_group)
    zero_grad = unwrap(AdamW.zero_grad)
    state_dict = unwrap(AdamW.state_dict)
    load_state_dict = unwrap(AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(AdamW.step))

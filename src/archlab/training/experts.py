"""Expert parallelism (Lepikhin 2020): the experts of a mixture dealt among processes with windows of their own.

Each row goes to the process that has its expert, and comes back. All else each process has whole.
"""

from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial

from archlab.config.components.moe import MoE as MoEConfig
from archlab.model.decoder import Decoder
from archlab.model.moe import Experts, MoE
from archlab.model.torch_private import exchange_rows
from archlab.training.parts import Holders


def deal_experts(model: Decoder, mesh: DeviceMesh) -> None:
    """In place, before the parameters have values."""
    group = _Dealt(mesh)
    for layer, config in zip(model.layers, model.layer_configs, strict=True):
        for module in layer.children():
            if isinstance(module, MoE):
                assert isinstance(config.mlp, MoEConfig)
                own = Experts(config.mlp.dealt(group.size), config.d_model)
                group.divide(module.experts, own)
                own.through = partial(group.through, own)
                module.experts = own
    group.hold(model, Partial())


class _Dealt(Holders):
    """What processes that have experts for each other send."""

    def through(self, experts: Experts, x_RD: Tensor, expert_R: Tensor) -> Tensor:
        """Rows in the order of all experts through these, wherever they are: [R, D] -> [R, D]."""
        E = len(experts.up)
        sent_PE = torch.bincount(expert_R, minlength=self.size * E).view(self.size, E)
        got_PE = self._exchanged(sent_PE, [1] * self.size, [1] * self.size)
        sent, got = sent_PE.sum(1).tolist(), got_PE.sum(1).tolist()
        own_S = torch.arange(E, device=x_RD.device).repeat(self.size).repeat_interleave(got_PE.flatten())
        order_S = own_S.argsort(stable=True)
        x_SD = self._exchanged(x_RD, got, sent).index_select(0, order_S)
        y_SD = Experts.through(experts, x_SD, own_S[order_S])
        return self._exchanged(y_SD.index_select(0, order_S.argsort()), sent, got)

    def _exchanged(self, x: Tensor, got: list[int], sent: list[int]) -> Tensor:
        """So many rows from each process, for so many to each."""
        return exchange_rows(x.contiguous(), got, sent, self.mesh.get_group())

"""Costs of branches add up to the costs of the model."""

import pytest

from archlab.config.components.work import Pass
from archlab.exchange.configs import load_config
from archlab.pricing.by_branch import branch_costs
from archlab.pricing.summary import cost
from archlab.pricing.work import forward

AROUND_BRANCHES = {"embedding", "positions", "norms", "stream", "head"}


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "gemma-2-9b", "deepseek-v3", "t5-small", "bert-base", "lfm2-1.2b", "qwen3-next-80b-a3b"]
)
def test_branches_add_up_to_the_model(name: str) -> None:
    config = load_config(name)
    costs = cost(config, batch=3, context=512)
    model_pass = Pass(3, 512, counting="visible", source=costs.source)
    branches = list(branch_costs(config.model, model_pass))
    assert sum(branch.state_bytes for branch in branches) == costs.kv_cache_bytes + costs.recurrent_bytes
    around = costs.parameters.embedding + costs.parameters.positions + costs.parameters.norms + costs.parameters.head
    # Biases on scores that all layers share, and norms inside components, belong to a branch and to a row of their own.
    inside = sum(branch.parameters for branch in branches)
    assert costs.parameters.total - around <= inside <= costs.parameters.total
    flops = sum(operation.flops for operation in forward(config.model, model_pass))
    rest = sum(o.flops for o in forward(config.model, model_pass) if o.part in AROUND_BRANCHES | {"encoder"})
    assert flops - rest <= sum(branch.flops for branch in branches) <= flops

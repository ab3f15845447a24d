"""How the processes of torchrun divide a training."""

from archlab.config.core.base import Count, Settings


class ParallelConfig(Settings):
    """How many processes stand along each way of dividing; their product is the number that torchrun starts."""

    replicate: Count = 1
    """Groups that hold all of the model each; they average their gradients."""
    shard: Count | None = None
    """Processes of a group, among which weights, gradients and the optimiser's state are cut (ZeRO 3, Rajbhandari
    2019; torch's fully_shard). null: all that are left."""
    tensor: Count = 1
    """Processes that work on the same windows and divide every layer's heads and middles (tensor parallelism, Shoeybi
    2019). Embedding, norms and head each of them has."""
    expert: Count = 1
    """Processes with windows of their own that are dealt the experts of every mixture (expert parallelism, Lepikhin
    2020) and send each other the tokens for them. All else each of them has."""
    context: Count = 1
    """Processes that divide the tokens of the same windows (context parallelism). Each has queries of its own and
    gathers the keys and values of all (Llama 3, 2024); weights are cut among them as among those of `shard`."""

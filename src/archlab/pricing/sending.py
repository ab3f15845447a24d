"""Bytes that a device sends in a training step, and the speed of its links."""

from collections.abc import Sequence

from archlab.config.components.component import weights_in
from archlab.config.components.work import FLOAT32_BYTES
from archlab.config.optimizer import Muon
from archlab.errors import UserError
from archlab.pricing.hardware import Hardware
from archlab.pricing.partition import Parallel
from archlab.pricing.stage import BYTES_PER_WEIGHT, Batch, Stage
from archlab.pricing.update import dealt


def bytes_sent(stages: Sequence[Stage], parallel: Parallel, batch: Batch, recompute: bool) -> dict[str, int]:
    """Return the bytes sent in a step by the device that sends the most.

    - shard: The weights of a layer are gathered for each use (forward and backward pass) and freed after it. Weights
      outside the layers are gathered once and kept until their backward pass. Gradients are reduced after each
      micro-batch. All are sent in float32. Recomputation does not gather weights again, because the backward pass of
      the layer needs them anyway. The momenta that Muon sends are added.
    - replicate: Replicas average their gradients once per step.
    - tensor: Devices gather the residual stream before each group of branches and scatter it after the group: in the
      forward pass, in the backward pass, and in a recomputation.
    - pipeline: The first stage sends the residual stream to the next stage. The last stage sends the gradient of the
      stream to the previous stage. All other stages send both.
    """
    d, s, t, p = parallel.replicate, parallel.shard, parallel.tensor, parallel.pipeline
    own = max(stage.parameters_per_device(t) for stage in stages)
    momenta = max(_momenta(stage, parallel) for stage in stages)
    gathered = FLOAT32_BYTES * max(3 * stage.parameters_per_device(t) - stage.outside_layers / t for stage in stages)
    stream = batch.texts * batch.tokens * stages[0].model.d_model * BYTES_PER_WEIGHT
    groups = max(sum(n * len(layer.stages) for layer, n in stage.layers.items()) for stage in stages)
    return {
        "replicate": round(2 * (d - 1) / d * FLOAT32_BYTES * own / s),
        "shard": round((s - 1) / s * (gathered * batch.n_micro_batches + momenta)),
        # The stream is gathered before and scattered after each group of branches, forward and backward.
        "tensor": round((t - 1) / t * (4 + 2 * recompute) * groups * stream),
        "pipeline": min(p - 1, 2) * stream // t,
    }


def _momenta(stage: Stage, parallel: Parallel) -> float:
    """Return the bytes of momenta and updates that Muon exchanges. A device sends (shard - 1) / shard of them.

    A group of matrices is dealt to the devices that have parts of them. Each device sends its parts of all others'
    matrices, and then their parts of the update of its own matrix. A matrix outside a group is gathered. Experts of
    which each device has some stay where they are.
    """
    if not isinstance(stage.optimizer, Muon):
        return 0
    in_groups = dealt(stage.matrix_shapes, parallel.shard)
    moved = sum(shape.n_weights * n for shape, n in in_groups.items() if shape.stacked == 1)
    gathered = weights_in(stage.matrix_shapes - in_groups)
    return BYTES_PER_WEIGHT * (2 * moved / parallel.shard + gathered)


def bandwidth(device: Hardware, parallel: Parallel, way: str) -> float:
    """Return the bytes per second that one device can send in the dimension `way`.

    If several devices of a group are in one server, they use the network adapters of all of them together. The speed is
    then the sum of these adapters' speeds, but at most that of the link inside the server. Raise UserError if no link
    between the devices is known.
    """
    span = parallel.group_span(way)
    if span <= device.linked and device.link:
        return device.link.bandwidth
    if device.network is None:
        largest = f"up to {device.linked} devices" if device.link else "one device"
        raise UserError(
            f"{device.name} has no known link between {span} devices; allowed: {largest}, or a YAML file of the device "
            "with a link between servers, as in `network: {name: Ethernet, bandwidth: 12.5e9}`"
        )
    if way == "pipeline":
        return device.network.bandwidth
    together = max(1, device.devices_per_server // parallel.neighbor_distance(way))
    out = together * device.network.bandwidth
    return min(out, device.link.bandwidth) if device.link and together > 1 else out

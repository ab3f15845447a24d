"""8-bit weights: close to the original model, with the kernel and with the ordinary product."""

import pytest
import torch

import archlab
from archlab.infer.int8 import Int8Projection, to_int8
from archlab.model.decoder import Decoder
from archlab.model.projection import Projection
from tiny import config

TOKENS = torch.randint(0, 17, (2, 12), generator=torch.Generator().manual_seed(0))


def projection(width: int, *, bias: bool) -> Projection:
    made = Projection(width, 24, bias=bias, role="input")
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [32, 37])
@pytest.mark.parametrize(("rows", "compiled"), [(1, False), (3, False), (40, False), (1, True)])
def test_the_product_is_that_of_the_rounded_matrix(
    dtype: torch.dtype, width: int, rows: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some widths and numbers of rows are supported by torch's kernel, others not. A compiled row is a loop."""
    made = projection(width, bias=True).to(dtype)
    rounded = Int8Projection(made.weight, made.bias)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact = x.double() @ rounded.weight.double().T + made.bias.double()
    if compiled:
        torch.compiler.reset()
        monkeypatch.setattr(Int8Projection, "weight", property(lambda _: pytest.fail("a matrix was converted back")))
        monkeypatch.setattr(torch.ops.aten, "_weight_int8pack_mm", lambda *_: pytest.fail("a call of torch's kernel"))
    run = torch.compile(rounded, backend="eager", fullgraph=True) if compiled else rounded
    with torch.no_grad():
        error = (run(x).double() - exact).abs().max() / exact.std()
    assert error < {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    monkeypatch.undo()
    step = made.weight.abs().amax(1, keepdim=True).float() / 127
    # The tolerance is half a step plus the rounding of the scale to bfloat16.
    assert (
        (rounded.weight.float() - made.weight.float()).abs() <= step * (0.51 if dtype is torch.float32 else 1.1)
    ).all()


@pytest.mark.parametrize(("device", "is_int8"), [("meta", True), ("meta", False), ("cpu", False)])
def test_a_compiled_row_reads_int8_on_each_device(device: str, is_int8: bool) -> None:
    """On a GPU, a bfloat16 matrix made in each step would cost more than int8 saves. For other matrices, torch's own product is used."""
    made = projection(32, bias=False).to(device, torch.bfloat16)
    called: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compiler.reset()
    run = torch.compile(Int8Projection(made.weight, None) if is_int8 else made, backend=backend, fullgraph=True)
    with torch.no_grad():
        run(torch.ones(1, 32, device=device, dtype=torch.bfloat16))
    is_loop = is_int8 or device == "cpu"
    assert ("sum" in called) is is_loop
    assert any("linear" in name for name in called) is not is_loop


def test_a_row_of_zeros_stays_one() -> None:
    made = projection(32, bias=False)
    torch.nn.init.zeros_(made.weight[:5].data)
    assert torch.equal(Int8Projection(made.weight, made.bias)(torch.ones(1, 32))[0, :5], torch.zeros(5))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.head={tied: false, bias: true, softcap: 9}",),
        ("model.position={kind: transformer_xl}",),
        ("model.mlp={kind: moe, experts: 4, shared: {}}",),
        ("model.attention={kind: latent, n_heads: 4, kv_rank: 8, nope_dim: 8, rope_dim: 4}",),
        (
            "model.attention={kind: none}",
            "model.mixer={kind: mamba2, head_dim: 8, d_state: 4}",
            "model.position={kind: none}",
        ),
    ],
)
def test_a_converted_model_is_close_and_decodes_as_in_a_full_pass(overrides: tuple[str, ...]) -> None:
    model = Decoder(config(*overrides).model).eval()
    expected, n_bytes = model(TOKENS), sum(p.nbytes for p in model.layers.parameters())
    head = model.head.weight if model.head.weight is not None else model.embedding.weight
    head_bytes = head.nbytes
    small = to_int8(model)
    found = small(TOKENS)
    assert 0 < (found - expected).square().mean().sqrt() < 0.05 * expected.std()  # 0.01 to 0.03 seen
    tensors = [*small.layers.parameters(), *small.layers.buffers()]
    assert sum(t.nbytes for t in tensors) < n_bytes
    assert sum(t.nbytes for t in [*small.head.parameters(), *small.head.buffers()]) < head_bytes / 3
    written = archlab.generate(small, TOKENS, 4)
    assert torch.equal(
        written[:, 12:], torch.stack([small(written[:, : 12 + i])[:, -1].argmax(-1) for i in range(4)], 1)
    )

"""How a router shares tokens among experts before any training."""

import altair as alt
import torch

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.model.router import collected_loads

_EXPERTS, _ACTIVE, _TOKENS = 8, 2, 512
_MODEL = {
    "vocab_size": 512,
    "d_model": 64,
    "n_layers": 1,
    "max_seq_len": _TOKENS,
    "attention": {"n_heads": 4},
    "mlp": {"kind": "moe", "experts": _EXPERTS, "active": _ACTIVE, "d_ff": 32},
}


def tiny_mixture() -> Config:
    """A layer of eight experts, of which each token passes through two."""
    return build_config({"model": _MODEL})


@torch.no_grad()
def load_points(config: Config, seed: int = 0) -> list[dict[str, float]]:
    """The share of the tokens that each expert has, in the first layer with a router; random weights and tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(config.model.vocab_size, (1, _TOKENS), generator=generator)
    collected = Collected()
    Decoder(config.model, seed=seed).eval()(tokens_BT, collected=collected)
    load = collected_loads(collected)[0]
    return [{"expert": i, "share": share} for i, share in enumerate((load.chosen_E / load.tokens).tolist(), 1)]


def router_loads() -> alt.LayerChart:
    """A bar per expert, and what each would have if all loads were equal."""
    bars = alt.Chart(alt.InlineData(values=load_points(tiny_mixture()))).mark_bar(style="dots", cornerRadius=1)
    x = alt.X("expert:O").axis(title="expert", labelAngle=0)
    y = alt.Y("share:Q").axis(title="share of the tokens", format="%", tickCount=5)
    even = alt.Chart(alt.InlineData(values=[{"share": _ACTIVE / _EXPERTS}]))
    layers = [bars.encode(x=x, y=y), even.mark_rule(strokeDash=[5, 4], style="notch").encode(y="share:Q")]
    return alt.LayerChart(layer=layers, width="container", height=240, description="Loads of a router's experts")

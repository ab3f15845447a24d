"""The command `archlab explain`."""

from typing import Annotated

from cyclopts import Parameter

from archlab.cli.arguments import Flag, TopicName
from archlab.cli.terminal import long_output, print_json
from archlab.console import console
from archlab.report.explain import explain


@long_output
def run(
    *topic: TopicName, plugins: Annotated[tuple[str, ...], Parameter(show_default=False)] = (), json: Flag = False
) -> None:
    """Explain an architecture choice: formula, effect, reasons, models that use it, cost, evidence and settings.

    Parameters
    ----------
    topic
        A name, as in swiglu, GQA or 'sliding window'; a field, as in model.attention.n_kv_heads; or a value, as in
        gelu_tanh. Without a topic, all topics are listed in the order of a lecture.
    plugins
        Files or modules of your own. Their kinds and fields are explained, too. Repeat the option for several.
    json
        Print JSON.
    """
    explanation = explain(" ".join(topic), plugins=plugins)
    if json:
        print_json(explanation.data)
        return
    out = console()
    for line in explanation.lines(out.width):
        out.print(line, soft_wrap=True)

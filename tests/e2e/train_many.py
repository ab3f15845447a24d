"""Train every config of a YAML file in its own folder: `python train_many.py CONFIGS FOLDER`, or under torchrun."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import yaml
from torch.distributed import destroy_process_group, init_process_group

from archlab.config.core.merge import expand
from archlab.config.core.plugins import import_if_possible
from archlab.config.core.trust import accept
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.training.callback import Callback, StepMetrics
from archlab.training.train import train


class Stopping(Callback):
    """Asks the training to stop after two steps."""

    def on_step(self, metrics: StepMetrics) -> None:
        if metrics.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    file, folder = map(Path, sys.argv[1:])
    common, *configs = yaml.safe_load_all(file.read_text())
    plugins = [plugin for one in configs for plugin in one.get("plugins", ())]
    accept(*plugins)
    import_if_possible(plugins)
    if not (alone := "WORLD_SIZE" not in os.environ):
        init_process_group("gloo")  # once for all configs
    for one in configs:
        name, first, then = one.pop("name"), one.pop("parallel", {}), one.pop("then", None)
        for parallel in [{}] if alone else [first] if then is None else [first, then]:
            config = build_config(overlay(expand(common), {**one, "parallel": parallel}, Config))
            with suppress(KeyboardInterrupt):
                train(config, folder / name, Stopping() if then and parallel is first else Callback())
    if not alone:
        destroy_process_group()  # its threads must end before Python

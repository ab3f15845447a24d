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
from archlab.config.core.yaml_text import to_yaml
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.digests import write_digests
from archlab.hf.imported import IMPORTED, Imported
from archlab.model.decoder import Decoder
from archlab.training.callback import Callback, StepMetrics
from archlab.training.saving import save_checkpoint
from archlab.training.train import train


def import_random(config: Config, folder: Path) -> None:
    """Create a run folder at step 0, like `archlab import`, with random weights."""
    (folder / "checkpoints").mkdir(parents=True)
    record = Imported(family="llama", special_ids={}, dtype="float32")
    (folder / IMPORTED).write_text(record.model_dump_json())
    (folder / "config.yaml").write_text(to_yaml(config.model_dump(mode="json")))
    save_checkpoint(folder / "checkpoints", 0, Decoder(config.model, seed=5), optimizer=None)
    write_digests(folder)


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
            if config.train.lora and os.environ.get("RANK", "0") == "0" and not (folder / name).exists():
                import_random(config, folder / name)
            with suppress(KeyboardInterrupt):
                train(config, folder / name, Stopping() if then and parallel is first else Callback())
    if not alone:
        destroy_process_group()  # its threads must end before Python

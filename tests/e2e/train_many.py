"""Trains every config of a YAML file in a folder of its own: `python train_many.py CONFIGS FOLDER`, or by torchrun."""

import os
import sys
from pathlib import Path

import yaml
from torch.distributed import init_process_group

from archlab.config.io import build_config, overlay
from archlab.config.merge import expand
from archlab.config.schema import Config
from archlab.train.loop import train
from archlab.train.progress import Callback

if __name__ == "__main__":
    file, folder = map(Path, sys.argv[1:])
    common, *configs = yaml.safe_load_all(file.read_text())
    if not (alone := "WORLD_SIZE" not in os.environ):
        init_process_group("gloo")  # once, for all of them
    for one in configs:
        name, parallel = one.pop("name"), one.pop("parallel", {})
        change = one if alone else {**one, "parallel": parallel}
        train(build_config(overlay(expand(common), change, Config)), folder / name, Callback())

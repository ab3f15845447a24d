"""A separate process: the modules it loads, and its end when the reader of its output leaves."""

import json
import os
import subprocess
import sys

import pytest


def test_training_loads_no_more_than_it_needs(lab):
    """Each of these modules takes about a second. Only a compiled run needs torch's compiler.

    The run also measures kernels of attention, and chooses matrix products even for the smallest gain.
    """
    slow = {
        "torch._dynamo",
        "torch._inductor",
        "sympy",
        "scipy",
        "altair",
        "vl_convert",
        "jinja2",
        "transformers",
        "gguf",
    }
    small = ["model.d_model=32", "model.n_layers=1", "model.vocab_size=300", "model.attention={n_heads: 2}"]
    short = [
        "train.tokens=640",
        "train.batch_tokens=64",
        "train.seq_len=16",
        "train.eval_tokens=64",
        "train.dtype=bfloat16",
    ]
    data = f"data.path={lab.folder / 'text.txt'}"
    arguments = ["train", "tiny-llama", *small, *short, data, "--out", str(lab.folder / "run")]
    measured = "from archlab.training import attention_kernels; attention_kernels.WORTHWHILE = 0"
    code = f"{measured}; from archlab.cli.app import main; assert main({arguments}) in (0, 1); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=lab.env)
    assert done.returncode == 0, done.stderr
    assert (lab.folder / "run" / "summary.json").exists()
    assert json.loads((lab.folder / "run" / "env.json").read_text())["attention"] == {"products": 1}
    assert slow & set(done.stdout.split()) == set()


@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
@pytest.mark.parametrize("verb", ["schema", "list", "--help"])
def test_a_reader_that_leaves_causes_no_error(verb):
    """This holds whether Python, Rich or cyclopts writes."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; from archlab.cli.app import main; sys.exit(main(['{verb}']))"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="a shell as POSIX has it")
@pytest.mark.parametrize(("command", "code"), [("cost tiny-llama >&-", 0), ("cots >&- 2>&-", 2), ("cots 2>&-", 2)])
def test_a_closed_output_causes_no_error(command, code):
    done = subprocess.run(
        f"{sys.executable} -m archlab {command}", shell=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")

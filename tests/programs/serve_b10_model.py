"""A model server as Baseten's page on b10-transfer shows it: load, compile and warm up, save.

    python serve_b10_model.py real|ours FOLDER MODEL...

The environment says where everything is. The last line on stdout is JSON: what load and save returned, and the
report of `compile_models.py`.
"""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch._dynamo  # as a model server has before it loads anything: it pins torch's own folder into the environment
from share_b10 import load_package


def main() -> None:
    which, folder, *models = sys.argv[1:]
    assert torch._dynamo
    package = load_package(which, Path(folder))
    loaded = package.load_compile_cache()
    sys.argv = ["compile_models.py", *models]
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(Path(__file__).with_name("compile_models.py")), run_name="__main__")
    saved = package.save_compile_cache()
    report = json.loads(said.getvalue().splitlines()[-1])
    print(json.dumps({"loaded": loaded.name, "saved": saved.name, **report}))


if __name__ == "__main__":
    main()

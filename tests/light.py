"""Run by the interpreter of an environment that has only `pip install .`: the core works, and torch is not there."""

import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

assert importlib.util.find_spec("torch") is None, "the core must not pull torch in"
verb = str(Path(sys.executable).with_name("draftsmith"))
subprocess.run([verb, "--help"], check=True, stdout=subprocess.DEVNULL)  # the first call compiles bytecode
seconds = []
for _ in range(5):
    began = time.perf_counter()
    subprocess.run([verb, "--help"], check=True, stdout=subprocess.DEVNULL)
    seconds.append(time.perf_counter() - began)
assert min(seconds) < 0.3, seconds
told = subprocess.run([verb, "evaluate", "--trace", "nowhere", "--draft", "ngram"], capture_output=True, text=True, check=False)
assert told.returncode == 1, told.stderr
assert "What to do" in told.stderr, told.stderr
with tempfile.TemporaryDirectory() as store:
    asked = ["predict", "--plain-ms", "30", "--draft-ms", "3", "--acceptance", "0.6", "--store"]
    answer = subprocess.run([verb, *asked, store], capture_output=True, text=True, check=True)
assert answer.stdout.startswith("Go: "), answer.stdout
assert "draftsmith[report]" in answer.stderr, answer.stderr
missing = subprocess.run([verb, "doctor"], capture_output=True, text=True, check=False)
assert missing.returncode == 1, missing.stdout
assert "pip install" in missing.stdout, missing.stdout
print(f"light install: --help in {min(seconds):.2f} s, no torch")

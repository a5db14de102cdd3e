"""What `import jsonschema` costs with the extra format-nongpl. In two environments of its own; a minute."""

import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import time
begin = time.process_time()
import jsonschema
print(f"{time.process_time() - begin:.2f} s of CPU")
"""


def main(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    for requirement in ("jsonschema[format-nongpl]<4.25", "jsonschema[format-nongpl]"):
        install = [python, "-m", "pip", "install", "--quiet", "--upgrade", requirement]
        subprocess.run(install, check=True, timeout=120, stderr=subprocess.DEVNULL)
        listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
        names = ("jsonschema=", "rfc3987")
        print(*(line for line in listed.stdout.splitlines() if line.startswith(names)))
        for _ in range(3):
            subprocess.run([python, "-c", CODE], check=True, timeout=60)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))

"""`python -m tests.dex.pyright_lines`: pyright refuses exactly the lines that are marked `# error`.

The same files are checked by mypy in `test_client_typing` and `test_typing`. Pyright is no part of the tests proper,
because it fetches itself from the network when it first runs; CI runs this module beside the other static checks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("typing_client.py", "typing_ok.py", "typing_bad.py")


def marked(path: Path) -> set[int]:
    return {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.rstrip().endswith("# error")}


def reported(files: list[Path]) -> dict[str, dict[int, str]]:
    """The errors of each file by line."""
    with tempfile.TemporaryDirectory() as folder:
        for file in files:  # pyright takes no paths outside of its project
            shutil.copy(file, folder)
        config = Path(folder) / "pyrightconfig.json"
        config.write_text(
            json.dumps(
                {
                    "extraPaths": [str(HERE.parents[1] / "sdk")],
                    "typeCheckingMode": "standard",
                    "enableTypeIgnoreComments": True,
                    "pythonVersion": "3.11",
                }
            )
        )
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--outputjson", "-p", str(config), "--pythonpath", sys.executable],
            capture_output=True,
            text=True,
            check=False,
        )
    found: dict[str, dict[int, str]] = {file.name: {} for file in files}
    for diagnostic in json.loads(done.stdout)["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            line = diagnostic["range"]["start"]["line"] + 1
            found[Path(diagnostic["file"]).name].setdefault(line, diagnostic["message"].splitlines()[0])
    return found


def main() -> int:
    files = [HERE / name for name in FILES]
    found = reported(files)
    wrong = 0
    for file in files:
        errors, wanted = found[file.name], marked(file)
        for line in sorted(wanted - errors.keys()):
            print(f"{file.name}:{line}: pyright accepts it, and it is marked as an error")
        for line in sorted(errors.keys() - wanted):
            print(f"{file.name}:{line}: {errors[line]}")
        wrong += len(wanted ^ errors.keys())
    print(f"pyright: {wrong} lines are not as marked" if wrong else "pyright: all lines are as marked")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

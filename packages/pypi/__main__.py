"""Runs the program that this package installs: for `uvx rescind-cli` and `python -m rescind_cli`."""

import os
import subprocess
import sys
import sysconfig


def main() -> None:
    name = "rescind.exe" if os.name == "nt" else "rescind"
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # `pip install --target FOLDER` has the programs in FOLDER/bin.
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin")
    for folder in [beside, *schemes]:
        program = os.path.join(folder, name)
        if os.path.isfile(program):
            break
    else:
        sys.exit(f"rescind: {name} is not in {', '.join([beside, *schemes])}: install rescind-cli again")
    command = [program, *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.run(command).returncode)
    os.execv(program, command)


if __name__ == "__main__":
    main()

"""Print the lowest versions that pyproject.toml declares, of package and tests, as pip takes them."""

import re
import tomllib
from pathlib import Path


def floors() -> list[str]:
    """Return ``name==version`` of each requirement.

    Raises:
        ValueError: a requirement without a lowest version.
    """
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [line for line in extras["dev"] if line.startswith(("pytest", "hypothesis"))]
    versions = []
    for line in project["dependencies"] + tests:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", line)
        if match is None:
            raise ValueError(f"{line!r} in pyproject.toml has no lowest version; expected name>=version")
        versions.append(f"{match[1]}=={match[2]}")
    return versions


if __name__ == "__main__":
    print("\n".join(floors()))

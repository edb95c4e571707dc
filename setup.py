"""The metadata are in pyproject.toml; here is what it cannot say: configs/ is installed as cog.configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cog", "cog.*"]), "cog.configs"], package_dir={"cog.configs": "configs"}
)

"""Install configs/ as cog.configs, which pyproject.toml cannot declare; it has all other metadata."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cog", "cog.*"]), "cog.configs"], package_dir={"cog.configs": "configs"}
)

"""Packaging of the ImageNet-CoG toolkit (distribution ``imagenet-cog``, import name ``cog``)."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "cog" / "__init__.py").read_text()).group(1)
TEST = ["pytest>=7", "hypothesis>=6", "scikit-learn>=1.2"]

setup(
    name="imagenet-cog",
    version=VERSION,
    description="Concept generalization of visual representations: the ImageNet-CoG benchmark",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    # configs/ is edited in the checkout and lives inside the package once installed, so that
    # an installation adds no top-level module named "configs".
    packages=[*find_packages(include=["cog", "cog.*"]), "cog.configs"],
    package_dir={"cog.configs": "configs"},
    package_data={
        "cog": ["py.typed", "data/*.txt", "data/*.csv", "**/*.txt", "**/*.csv", "**/*.css", "**/*.js"],
        "cog.configs": ["*.yaml"],
    },
    install_requires=[
        "torch>=2.6",
        "torchvision>=0.21",
        "optuna>=3.6",
        "yacs>=0.1.8",
        "nltk>=3.8",
        "numpy>=1.24",
        "termcolor>=2.1",
        "tqdm>=4.60",
    ],
    extras_require={
        "plots": ["matplotlib>=3.6"],
        "analysis": ["scikit-learn>=1.2"],
        "test": TEST,
        "dev": [
            *TEST,
            "setuptools>=64",
            "matplotlib>=3.6",
            "ruff>=0.6",
            "mypy>=1.10",
            "types-PyYAML",
            "types-tqdm",
        ],
    },
    entry_points={
        "console_scripts": [
            "cog-extract-features=cog.commands.extract_features:cli",
            "cog-logreg=cog.commands.logreg:cli",
            "cog-print-results=cog.commands.print_results:cli",
            "cog-build-levels=cog.commands.build_levels:cli",
            "cog-analyze-features=cog.commands.analyze_features:cli",
            "cog-finetune=cog.commands.finetune:cli",
            "cog-models=cog.models.__main__:cli",
        ]
    },
    classifiers=[
        "License :: OSI Approved :: BSD License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)

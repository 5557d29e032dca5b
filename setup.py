"""Packaging of tpugraphs-polynormer; a test resolves the requirements for every allowed Python."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "tpugraphs_polynormer/__init__.py").read_text())[1]

setup(
    name="tpugraphs-polynormer",
    version=VERSION,
    description="Ranks compiler choices of TPU programs (TpuGraphs) with Polynormer, a graph transformer in Keras.",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Compilers",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
    ],
    # The configs are outside the package in the repository, and in the package in a wheel.
    package_dir={"tpugraphs_polynormer.configs": "configs"},
    package_data={
        "tpugraphs_polynormer": ["box/**/*"],
        "tpugraphs_polynormer.ranking.report": ["*.template"],
        "tpugraphs_polynormer.configs": ["**/*.yaml"],
    },
    python_requires=">=3.10,<3.14",
    packages=[*find_packages(include=["tpugraphs_polynormer*"]), "tpugraphs_polynormer.configs"],
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "tf-keras>=2.20,<2.22",
        "tensorflow-gnn>=1.0.3,<1.1",
        "apache-beam>=2.77,<2.78",
        "google-crc32c>=1.5,<2",  # for Beam's TFRecords; its extra `tfrecord` has only crcmod, in C source code
        "protobuf>=5,<7",
        "numpy>=2.0,<2.5",
        "pandas>=2.2,<3.2",
        "scipy>=1.13,<1.18",
        "pyyaml>=6,<7",
        "tqdm>=4.60,<5",
        "matplotlib>=3.9,<3.12",
    ],
    extras_require={
        "test": [
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "ruff>=0.9,<0.18",
            "psutil>=5.9,<8",
            "playwright>=1.60,<2",  # drives an installed browser; `make browser` installs one
        ],
        "completion": ["argcomplete>=3,<4"],  # eval "$(register-python-argcomplete tpugraphs)"
        "dask": ["apache-beam[dask]>=2.77,<2.78"],
        "s3": ["apache-beam[aws]>=2.77,<2.78", "boto3>=1.44,<2"],  # s3:// paths
        "engines": ["moto[server]>=5.2,<6"],  # a stand-in for S3 in tests, with the extra s3
        "jax": ["jax>=0.6,<0.11", "flatbuffers>=24,<26"],
        # The real TPU compiler; libtpu's licence is the Google Cloud Platform terms.
        "tpu-compiler": ["jax>=0.10,<0.11", "jaxlib>=0.10,<0.11", "libtpu>=0.0.50,<0.0.52"],
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.22"],
        "tpu": ["tensorflow-tpu>=2.20,<2.21", "libtpu<0.0.44"],
    },
    entry_points={
        "console_scripts": [
            "tpugraphs=tpugraphs_polynormer.cli.main:main",
            "tpugraphs-beam-worker=tpugraphs_polynormer.beam.worker:main",
        ]
    },
)

"""Apache Beam jobs: preprocessing and scoring."""

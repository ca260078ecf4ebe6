"""The files of a run, their signatures, and the comparison of two runs."""

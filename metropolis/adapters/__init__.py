"""Worlds as others know them: Gymnasium's Env and PettingZoo's ParallelEnv."""

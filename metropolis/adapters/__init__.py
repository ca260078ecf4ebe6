"""Adapters of worlds to Gymnasium's Env and PettingZoo's ParallelEnv."""

"""Live runs, replays, checkpoints and checks of worlds."""

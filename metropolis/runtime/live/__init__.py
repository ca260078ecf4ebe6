"""Live runs of worlds: `Simulation`, its configuration, its executors and their stores."""

"""What the viewer page shows, as chunks: of runs and of lanes of replays; docs/viewer.md."""

"""What happened when in a run or a replay: executions and calls; docs/timeline-format.md."""
